"""Trainings that are undone if they diverge, so that nobody who sees a client's reply can tell."""

from collections.abc import Callable

from torch import nn

from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import DivergedError


def undone_if_it_diverges(
    job: TrainJob, run: Callable[[TrainJob], float], report: Callable[[DivergedError], None]
) -> float:
    """Run a training, and undo it if it diverges.

    The model is then as it was before, its optimizer begins anew, and the loss is 0. So the client
    goes on, and whoever sees its reply cannot tell.

    Parameters
    ----------
    job : TrainJob
        The training.
    run : callable
        Runs it and returns its loss.
    report : callable
        Is called with the error of a training that is undone.
    """
    before = copied_state(job.model)
    try:
        return run(job)
    except DivergedError as error:
        report(error)
        job.model.load_state_dict(before)
        for optimizer in job.optimizers:
            optimizer.state.clear()
        return 0.0


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
