"""Optimizers without PyTorch's compiler step as PyTorch's own do."""

import copy

import numpy as np
import pytest
import torch
from helpers import client_of
from torch import nn
from torch.nn import functional

from fedkd_flwr.training.optimizers import build_optimizer, scheduled_rate

OWN = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, 0.1, weight_decay=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.1, weight_decay=0.01),
}


def take_steps(model, optimizer):
    for seed in range(3):
        images = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), torch.arange(8) % 3).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OWN)
def test_steps_equal_those_of_pytorch_bit_for_bit(name):
    expected = nn.Linear(5, 3)
    model = copy.deepcopy(expected)
    theirs = OWN[name](expected.parameters())
    ours = build_optimizer(name, model.parameters(), 0.1, 0.9, 0.01)
    take_steps(expected, theirs)
    take_steps(model, ours)

    # Goes on from the state of the other, as after a restart.
    continued = build_optimizer(name, model.parameters(), 0.1, 0.9, 0.01)
    continued.load_state_dict(copy.deepcopy(theirs.state_dict()))
    take_steps(expected, theirs)
    take_steps(model, continued)
    torch.testing.assert_close(expected.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_moments_of_adam_make_the_second_round_another(small):
    """A client that forgot them would take the second round's steps as if they were the first."""
    ends = []
    for forgets in (False, True):
        client = client_of(small, strategy="local", models="mlp", optimizer="adam")
        client.train_locally(1)
        if forgets:
            del client.session.memory.tensors["optimizer"]
        client.train_locally(2)
        ends.append(next(client.model.parameters()).detach().clone())
    assert not np.array_equal(*ends)


def test_schedules_by_hand():
    rates = {
        name: [scheduled_rate(0.8, name, t, 4) for t in (1, 2, 3, 4)]
        for name in ("constant", "cosine", "step")
    }
    assert rates["constant"] == [0.8] * 4
    np.testing.assert_allclose(rates["step"], [0.8, 0.8, 0.08, 0.008])
    np.testing.assert_allclose(
        rates["cosine"], [0.4 * (1 + c) for c in (1, 2**-0.5, 0, -(2**-0.5))]
    )
