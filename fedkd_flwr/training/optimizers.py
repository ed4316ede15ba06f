"""Optimizers by name, and learning-rate schedules over the rounds."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

TELL_THE_COMPILER = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
"""Methods of an optimizer that PyTorch wraps for its compiler."""


def _uncompiled(kind: type[Kind]) -> type[Kind]:
    """Return an optimizer class without those wrappers. Its steps are the same bit for bit.

    PyTorch imports its compiler when a wrapper is first used, which takes as long as importing
    PyTorch itself. A node would pay that with every message, and nothing here is compiled.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in TELL_THE_COMPILER}
    # The wrapper of `step` also disables gradients.
    methods["step"] = torch.no_grad()(methods["step"])
    return type(kind.__name__, (kind,), methods)


SGD = _uncompiled(torch.optim.SGD)
Adam = _uncompiled(torch.optim.Adam)
AdamW = _uncompiled(torch.optim.AdamW)


def build_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Build an optimizer by name; momentum is for ``sgd``, and decay decoupled in ``adamw``."""
    if name == "adam":
        return Adam(parameters, rate, weight_decay=weight_decay)
    if name == "adamw":
        return AdamW(parameters, rate, weight_decay=weight_decay)
    return SGD(parameters, rate, momentum, weight_decay=weight_decay)


def _constant(progress: float) -> float:
    return 1.0


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _step(progress: float) -> float:
    return 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "step": _step,
}
"""Factors of the learning rate, as functions of the share of finished rounds in [0, 1)."""


def scheduled_rate(rate: float, schedule: str, server_round: int, num_rounds: int) -> float:
    """Return the learning rate of a round, counted from 1, by a name of `SCHEDULES`."""
    return rate * SCHEDULES[schedule]((server_round - 1) / num_rounds)
