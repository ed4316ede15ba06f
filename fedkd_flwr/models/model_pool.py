"""A pool of model objects per architecture, which are filled with the weights of clients in turn.

Building a network takes longer than a small client's training.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.darts.genotype import SearchSpace
from fedkd_flwr.models.features import fold_into, with_common_width
from fedkd_flwr.models.torch_internals import unsent_buffers

FREE_MODELS = 64
"""Largest number of free models of one architecture that a process keeps."""


@dataclass(frozen=True)
class Architecture:
    """The architecture of a model: everything but its weights."""

    name: str
    shape: Shape
    classes: int
    search_space: SearchSpace
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
        return model


class AdjacentModels:
    """Models of one architecture whose parameters are moved into shared tensors, by row."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._row_of = {id(model): row for row, model in enumerate(models)}
        self._free = list(range(len(models)))
        self._parameters = {
            name: parameter.new_empty((len(models), *parameter.shape))
            for name, parameter in models[0].named_parameters()
        }
        before = [address for model in models for address in _addresses(model)]
        # Models of a custom builder may share frozen parameters, which then stay where they are.
        self._is_adjacent = len(before) == len(set(before))
        if self._is_adjacent:
            for row, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.data = self._parameters[name][row]
        self._addresses = [_addresses(model) for model in models]

    @property
    def num_free(self) -> int:
        """Number of free models."""
        return len(self._free)

    def take(self) -> nn.Module | None:
        """Return the first free model, with arbitrary weights, or None."""
        return self._models[heapq.heappop(self._free)] if self._free else None

    def put_back(self, model: nn.Module) -> bool:
        """Free a model if it is one of these, and return whether it is."""
        row = self._row_of.get(id(model))
        if row is None:
            return False
        heapq.heappush(self._free, row)
        return True

    def parameters_of(self, models: Sequence[nn.Module]) -> dict[str, Tensor] | None:
        """Return stacked parameters of consecutive models; None for others."""
        if not self._is_adjacent:
            return None
        first = self._row_of.get(id(models[0]), 0)
        end = first + len(models)
        if [id(model) for model in models] != [id(model) for model in self._models[first:end]]:
            return None
        # A method may have moved a model's parameters elsewhere.
        if [_addresses(model) for model in models] != self._addresses[first:end]:
            return None
        return {name: tensor[first:end] for name, tensor in self._parameters.items()}


def _addresses(model: nn.Module) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


_FREE: dict[Architecture, list[nn.Module]] = {}

_COMMON: dict[tuple[Architecture, int, str], dict[str, Tensor]] = {}

_ADJACENT: dict[Architecture, AdjacentModels] = {}


def prepare_adjacent(architecture: Architecture, count: int) -> None:
    """Provide models that are adjacent in memory, for clients that will borrow them next."""
    if architecture in _ADJACENT and _ADJACENT[architecture].num_free >= count:
        return
    _ADJACENT[architecture] = AdjacentModels([_built(architecture) for _ in range(count)])


def adjacent_parameters(models: Sequence[nn.Module]) -> dict[str, Tensor] | None:
    """Return the stacked parameters of models that are adjacent in memory; None for others."""
    rows = _ADJACENT.get(architecture_of(models[0]))
    return rows.parameters_of(models) if rows else None


def borrow(architecture: Architecture) -> nn.Module:
    """Return a model with arbitrary weights, all of which the caller has to overwrite."""
    free = _FREE.get(architecture)
    rows = _ADJACENT.get(architecture)
    model = (rows.take() if rows else None) or (free.pop() if free else None)
    if model is None:
        return _built(architecture)
    for buffers, name, as_built in vars(model)["as_built"]:
        # Not in place, because a forward pass may have replaced the tensor by one of another kind.
        buffers[name] = None if as_built is None else as_built.clone()
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
    architecture = architecture_of(model)
    if architecture in _ADJACENT and _ADJACENT[architecture].put_back(model):
        return
    free = _FREE.setdefault(architecture, [])
    if len(free) < FREE_MODELS:
        free.append(model)


def clear() -> None:
    """Remove all models from the pool."""
    _FREE.clear()
    _ADJACENT.clear()
    _COMMON.clear()


def architecture_of(model: nn.Module) -> Architecture:
    """Return the architecture of a model."""
    architecture: Architecture = vars(model)["architecture"]
    return architecture


def plain_copy(model: nn.Module, head: nn.Linear | None = None) -> nn.Module:
    """Return a copy of a model in its plain architecture, with any projection in its head."""
    plain = replace(architecture_of(model), feature_width=0)
    return fold_into(plain.build(), model, head).to(plain.device)
