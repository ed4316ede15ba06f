"""Optimizers by name, and how the step size goes over the rounds."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

TELL_THE_COMPILER = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
"""Methods of an optimizer that PyTorch wraps in a word to its compiler."""


def _uncompiled(kind: type[Kind]) -> type[Kind]:
    """Return a kind of optimizer without those wrappers; its steps are the same bit for bit.

    At the first use of any of them PyTorch imports its compiler, which takes as long as
    importing PyTorch itself, and a node pays that with every message. Nothing here compiles.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in TELL_THE_COMPILER}
    # The wrapper of `step` also turns gradients off.
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
    """Build an optimizer.

    Parameters
    ----------
    name : str
        ``sgd``, ``adam`` or ``adamw``.
    parameters : iterable of nn.Parameter
        What it steps on.
    rate : float
        Step size.
    momentum : float
        Of stochastic gradient descent; the others have moments of their own.
    weight_decay : float
        Weight of the penalty, decoupled in ``adamw``.
    """
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
"""Factor on the step size, from the share of the rounds that are over, in [0, 1)."""


def scheduled_rate(rate: float, schedule: str, server_round: int, num_rounds: int) -> float:
    """Return the step size in a round.

    Parameters
    ----------
    rate : float
        Step size in the first round.
    schedule : str
        ``constant``; ``cosine``, half a wave down to nearly 0 in the last round; or ``step``, a
        tenth after half of the rounds and a hundredth after three quarters.
    server_round, num_rounds : int
        The round, from 1, and how many there are.
    """
    return rate * SCHEDULES[schedule]((server_round - 1) / num_rounds)
