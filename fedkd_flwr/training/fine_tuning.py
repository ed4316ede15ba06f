"""Fine-tuning that keeps the best epoch on validation data."""

from collections.abc import Callable

from torch import nn

from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.loop import DivergedError


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
