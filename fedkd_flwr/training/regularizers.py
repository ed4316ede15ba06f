"""Losses with a regularization term on the weights, and helpers for such terms."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.utils import parameters_to_vector

from fedkd_flwr.training.losses import cross_entropy


@dataclass(frozen=True)
class Proximal:
    """Cross-entropy plus ``weight / 2 * ||w - center||²``.

    `tensors` is the center, one per parameter of the model, in order. `weight` is mu of FedProx,
    lambda of Ditto and pFedMe.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        distance = squared_distance_to(self.tensors, model)
        return cross_entropy(model, images, labels) + self.weight / 2 * distance


@dataclass(frozen=True)
class Linear:
    """Cross-entropy whose gradient is shifted by a direction, as if ``<direction, w>`` was added.

    `tensors` is the direction, one per parameter of the model, in order: in SCAFFOLD ``c - c_i``.
    """

    tensors: Sequence[Tensor] = field(compare=False)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return cross_entropy(model, images, labels) + slope_along(self.tensors, model)


@dataclass(frozen=True)
class ProximalLinear:
    """The terms of `Proximal` and `Linear` together.

    `tensors` are the center and then the direction. `weight` is alpha of FedDyn.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        half = len(self.tensors) // 2
        distance = squared_distance_to(self.tensors[:half], model)
        loss = cross_entropy(model, images, labels) + self.weight / 2 * distance
        return loss + slope_along(self.tensors[half:], model)


def squared_distance_to(center: Sequence[Tensor], model: nn.Module) -> Tensor:
    """Return ``||w - center||²`` over a model's parameters w."""
    return _sum_over(
        (parameter - target).square()
        for parameter, target in zip(model.parameters(), center, strict=True)
    )


def slope_along(direction: Sequence[Tensor], model: nn.Module) -> Tensor:
    """Return zero, with the gradient of ``<direction, w>`` in a model's parameters w."""
    products = _sum_over(
        parameter * part for parameter, part in zip(model.parameters(), direction, strict=True)
    )
    return products - products.detach()


def _sum_over(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.sum() for part in parts]).sum()


def flat_parameters(model: nn.Module) -> Tensor:
    """Return a copy of a model's parameters as one vector, in order."""
    return parameters_to_vector(model.parameters()).detach()


def split_like_parameters(vector: Tensor, model: nn.Module) -> list[Tensor]:
    """Split a flat vector into tensors with the shapes of a model's parameters, in order."""
    parameters = list(model.parameters())
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [part.view_as(like) for part, like in zip(parts, parameters, strict=True)]


def parameters_of(model: nn.Module) -> list[Tensor]:
    """Return detached copies of a model's parameters, in order."""
    return [parameter.detach().clone() for parameter in model.parameters()]


@torch.no_grad()
def relative_distance(model: nn.Module, before: Sequence[Tensor]) -> float:
    """Return ``||w - before|| / ||before||`` over all of a model's parameters; 0 without any."""
    if not before:
        return 0.0
    moved = [new - old for new, old in zip(model.parameters(), before, strict=True)]
    return float(_norm(moved) / _norm(before))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return vector_norm(torch.stack([vector_norm(tensor) for tensor in tensors]))


@torch.no_grad()
def fill_parameters(model: nn.Module, values: Sequence[Tensor]) -> None:
    """Overwrite a model's parameters, in order. Its buffers do not change."""
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)
