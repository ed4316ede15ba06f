"""Optimizers without PyTorch's compiler step as PyTorch's own do."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedkd_flwr.training.optimizers import build_optimizer

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
    for weight, value in zip(expected.parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, value)
