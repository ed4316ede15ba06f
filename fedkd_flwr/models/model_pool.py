"""A pool of model objects per architecture, which are filled with the weights of clients in turn.

Building a network takes longer than a small client's training.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.features import fold_into, with_common_width
from fedkd_flwr.models.genotype import SupernetSettings
from fedkd_flwr.models.torch_internals import unsent_buffers

FREE_MODELS = 64  # largest number of free models of one architecture that a process keeps


@dataclass(frozen=True)
class Architecture:
    """The architecture of a model: everything but its weights."""

    name: str
    shape: Shape
    classes: int
    search_space: SupernetSettings
    device: str
    feature_width: int = 0

    def build(self) -> nn.Module:
        """Build a model on the CPU, with weights from PyTorch's global generator."""
        model = build_model(self.name, self.shape, self.classes, self.search_space)
        if self.feature_width:
            with_common_width(model, self.feature_width)
        # Not by assignment, which modules handle specially.
        vars(model)["architecture"] = self
        vars(model)["as_built"] = [
            (buffers, name, None if buffer is None else buffer.to(self.device, copy=True))
            for buffers, name, buffer in unsent_buffers(model)
        ]
        vars(model)["trained_as_built"] = [p.requires_grad for p in model.parameters()]
        return model


_FREE: dict[Architecture, list[nn.Module]] = {}

_COMMON: dict[tuple[Architecture, int, str], dict[str, Tensor]] = {}


def borrow(architecture: Architecture) -> nn.Module:
    """Return a model with arbitrary weights, all of which the caller has to overwrite."""
    free = _FREE.get(architecture)
    if not free:
        return _built(architecture)
    model = free.pop()
    for buffers, name, as_built in vars(model)["as_built"]:
        # Not in place, because a forward pass may have replaced the tensor by one of another kind.
        buffers[name] = None if as_built is None else as_built.clone()
    for parameter, is_trained in zip(
        model.parameters(), vars(model)["trained_as_built"], strict=True
    ):
        parameter.requires_grad_(is_trained)  # the last borrower may have frozen it
    return model


@contextmanager
def borrowed(architecture: Architecture) -> Iterator[nn.Module]:
    """Lend a model like `borrow`, and take it back at the end or after an error."""
    model = borrow(architecture)
    try:
        yield model
    finally:
        give_back(model)


def _built(architecture: Architecture) -> nn.Module:
    # Whether a free model exists must not affect the random draws of the borrower.
    with torch.random.fork_rng(devices=[]):
        return architecture.build().to(architecture.device)


SHARED_DRAW = "initial-shared-weights"
"""Purpose of the draw of a shared model, apart from that of private models."""


def common_weights(
    architecture: Architecture,
    seed: int,
    build: Callable[[], nn.Module],
    purpose: str = "initial-weights",
) -> dict[str, Tensor]:
    """Return the initial weights that clients of one architecture share. Do not change them."""
    key = architecture, seed, purpose
    if key not in _COMMON:
        _COMMON[key] = build().state_dict()
    return _COMMON[key]


def give_back(model: nn.Module) -> None:
    """Return a model to the pool for the next client. The caller must not use it any more."""
    model.zero_grad(set_to_none=True)
    free = _FREE.setdefault(architecture_of(model), [])
    if len(free) < FREE_MODELS:
        free.append(model)


def clear() -> None:
    """Remove all models from the pool."""
    _FREE.clear()
    _COMMON.clear()


def architecture_of(model: nn.Module) -> Architecture:
    """Return the architecture of a model."""
    architecture: Architecture = vars(model)["architecture"]
    return architecture


def plain_copy(model: nn.Module, head: nn.Linear | None = None) -> nn.Module:
    """Return a copy of a model in its plain architecture, with any projection in its head."""
    plain = replace(architecture_of(model), feature_width=0)
    return fold_into(plain.build(), model, head).to(plain.device)


@torch.no_grad()
def fill_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the named parameters and buffers of a model. The others do not change."""
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            raise ValueError(f"the model has no {name} of shape {tuple(tensor.shape)}")
        own[name].copy_(tensor)
