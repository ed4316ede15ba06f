"""Model objects kept per architecture, to be filled with one client's weights after another's.

Building a network and drawing its initial weights costs more than a small client's training.
Those of clients that are served side by side lie side by side too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.common import Shape
from fedkd_flwr.models.darts.search_space import SearchSpace
from fedkd_flwr.models.features import with_common_width
from fedkd_flwr.models.rows import Rows

FREE_MODELS = 64
"""Models of one architecture that a process keeps for the next client."""

_Place = tuple[dict[str, Tensor | None], str, Tensor | None]
"""A module's buffers, the name of one, and what it holds."""


@dataclass(frozen=True)
class Architecture:
    """What makes two models alike but for their numbers.

    Attributes
    ----------
    name : str
        As `fedkd_flwr.models.build.build_model` takes it.
    shape : tuple of int
        Of a sample: channels, height and width of an image.
    classes : int
        Number of classes.
    search_space : SearchSpace
        Size of ``darts`` and ``darts-fixed``.
    device : str
        Where the model lies.
    feature_width : int
        Width to which a projection brings the features that enter the head; 0 for their own.
    """

    name: str
    shape: Shape
    classes: int
    search_space: SearchSpace
    device: str
    feature_width: int = 0

    def build(self) -> nn.Module:
        """Build a model with weights from torch's global generator, on the CPU."""
        model = build_model(self.name, self.shape, self.classes, self.search_space)
        if self.feature_width:
            with_common_width(model, self.feature_width)
        # Not by assignment, which modules reserve for tensors and modules.
        vars(model)["architecture"] = self
        vars(model)["as_built"] = [
            (buffers, name, None if buffer is None else buffer.to(self.device, copy=True))
            for buffers, name, buffer in _buffers_that_stay(model)
        ]
        return model


_FREE: dict[Architecture, list[nn.Module]] = {}

_ROWS: dict[Architecture, Rows] = {}


def lay_out(architecture: Architecture, count: int) -> None:
    """Have models at hand that lie side by side, for clients that are about to borrow them.

    Parameters
    ----------
    architecture : Architecture
        Of the models.
    count : int
        How many clients there are.
    """
    if architecture in _ROWS and _ROWS[architecture].num_free >= count:
        return
    _ROWS[architecture] = Rows([_built(architecture) for _ in range(count)])


def parameters_side_by_side(models: Sequence[nn.Module]) -> dict[str, Tensor] | None:
    """Return the parameters of models that lie side by side, as they lie.

    Parameters
    ----------
    models : sequence of nn.Module
        M models of one architecture.

    Returns
    -------
    dict of str to Tensor or None
        Shape (M, …) by name, changed as the models change; None where they lie apart.
    """
    rows = _ROWS.get(architecture_of(models[0]))
    return rows.parameters_of(models) if rows else None


def borrow(architecture: Architecture) -> nn.Module:
    """Return a model with whatever weights it was left with; all of them have to be filled.

    What it has counted, whatever else it holds in whole numbers, and buffers outside its state
    dict are as they were built: vectors of weights, or a memory, do not tell.
    """
    free = _FREE.get(architecture)
    rows = _ROWS.get(architecture)
    model = (rows.take() if rows else None) or (free.pop() if free else None)
    if model is None:
        return _built(architecture)
    for buffers, name, as_built in vars(model)["as_built"]:
        # Not in place: a forward pass may have put a tensor of any kind there.
        buffers[name] = None if as_built is None else as_built.clone()
    return model


@contextmanager
def borrowed(architecture: Architecture) -> Iterator[nn.Module]:
    """Lend a model as `borrow` does, and take it back at the end or at an error."""
    model = borrow(architecture)
    try:
        yield model
    finally:
        give_back(model)


def _built(architecture: Architecture) -> nn.Module:
    # Whether a model is at hand must not move the draws of whoever borrows it.
    with torch.random.fork_rng(devices=[]):
        return architecture.build().to(architecture.device)


def _buffers_that_stay(model: nn.Module) -> Iterator[_Place]:
    """Yield what nobody fills: buffers of whole numbers, and those outside the state dict."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            is_outside = name in module._non_persistent_buffers_set
            if is_outside or (buffer is not None and not buffer.is_floating_point()):
                yield module._buffers, name, buffer


def give_back(model: nn.Module) -> None:
    """Let the next client of the architecture have a model; nobody may use it any more."""
    model.zero_grad(set_to_none=True)
    architecture = architecture_of(model)
    if architecture in _ROWS and _ROWS[architecture].put_back(model):
        return
    free = _FREE.setdefault(architecture, [])
    if len(free) < FREE_MODELS:
        free.append(model)


def clear() -> None:
    """Let go of all models that are kept."""
    _FREE.clear()
    _ROWS.clear()


def architecture_of(model: nn.Module) -> Architecture:
    """Return the architecture that a model was built from."""
    architecture: Architecture = vars(model)["architecture"]
    return architecture
