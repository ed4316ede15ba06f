"""Trainings that are undone if they diverge, so that nobody who sees a client's reply can tell."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.jobs import Steps, TrainJob
from fedkd_flwr.training.loop import DivergedError

Answer = TypeVar("Answer")


def without_divergence(
    steps: Steps[Answer], report: Callable[[DivergedError], None]
) -> Steps[Answer]:
    """Yield the jobs of some steps, and undo a training that diverges.

    The model is then as it was before, its optimizer begins anew, and the loss is 0. So the client
    goes on, and whoever sees its reply cannot tell.

    Parameters
    ----------
    steps : generator
        The steps of a client.
    report : callable
        Is called with the error of a training that is undone.
    """
    try:
        job = next(steps)
        while True:
            if isinstance(job, TrainJob):
                result = yield from _undone_if_it_diverges(job, report)
            else:
                result = yield job
            job = steps.send(result)
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer


def _undone_if_it_diverges(job: TrainJob, report: Callable[[DivergedError], None]) -> Steps[float]:
    before = copied_state(job.model)
    try:
        loss: float = yield job
    except DivergedError as error:
        report(error)
        job.model.load_state_dict(before)
        for optimizer in job.optimizers:
            optimizer.state.clear()
        return 0.0
    return loss


def train_unless_it_diverges(
    model: nn.Module, train: Callable[[], None], report: Callable[[DivergedError], None]
) -> None:
    """Train, or leave the model as it was and report if the training diverges."""
    before = copied_state(model)
    try:
        train()
    except DivergedError as error:
        report(error)
        model.load_state_dict(before)
