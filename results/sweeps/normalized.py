"""The project's ``mlp`` with batch normalization, which PerFed-CKT's VGG networks have."""

import math

from torch import nn

from fedkd_flwr.data.registry import Shape


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Build an ``mlp`` whose 100 hidden units are normalized over the batch."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 100),
        nn.BatchNorm1d(100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )
