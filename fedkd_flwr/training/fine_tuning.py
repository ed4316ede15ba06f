"""Training that is undone: after its best epoch on validation data, or if it diverges."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.jobs import Steps, TrainJob
from fedkd_flwr.training.loop import DivergedError

Answer = TypeVar("Answer")


def keep_best_epoch(
    model: nn.Module,
    train_epoch: Callable[[], None],
    epochs: int,
    rank: Callable[[], tuple[float, ...]],
) -> None:
    """Train for some epochs, and leave the model as it was after the best of them.

    The model without any epoch counts too, so no training can lower its rank. Of equals the
    earliest is left. A training that diverges ends there.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    train_epoch : callable
        Trains the model for an epoch.
    epochs : int
        Largest number of epochs.
    rank : callable
        What the model is judged by now; higher is better.
    """
    best, weights = rank(), copied_state(model)
    for _ in range(epochs):
        try:
            train_epoch()
        except DivergedError:
            break
        now = rank()
        if now > best:
            best, weights = now, copied_state(model)
    model.load_state_dict(weights)


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
