"""Fine-tuning that keeps the best epoch on validation data."""

import pytest
import torch
from torch import nn

from fedkd_flwr.training.loop import DivergedError, keep_best_epoch


@pytest.mark.parametrize(
    ("ranks", "best"),
    [
        ([(5, 0.0), (7, 0.0), (6, 0.0)], 1),
        ([(5, 0.0), (4, 0.0), (3, 0.0)], 0),
        ([(5, -0.3), (5, -0.2), (5, -0.2)], 1),
        ([(5, 0.0), (4, 0.0), (6, float("nan"))], 2),
    ],
)
def test_the_earliest_epoch_of_the_highest_rank_is_kept(ranks, best):
    model, left = untrained(), iter(ranks)
    keep_best_epoch(model, lambda: add_one(model), len(ranks) - 1, lambda: next(left))
    assert epochs_of(model) == best


def test_fine_tuning_that_diverges_ends_with_the_best_epoch_before():
    model, ranks = untrained(), iter([(1,), (2,)])

    def train():
        if epochs_of(model) == 1:
            nn.init.constant_(model.weight, torch.inf)
            raise DivergedError("training diverged")
        add_one(model)

    keep_best_epoch(model, train, 5, lambda: next(ranks))
    assert epochs_of(model) == 1


def add_one(model):
    with torch.no_grad():
        model.bias += 1


def untrained():
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.bias)
    return model


def epochs_of(model):
    return round(float(model.bias.detach()))
