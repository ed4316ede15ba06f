"""Losses with a term about the weights themselves, and what such terms are made of."""

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

    Attributes
    ----------
    tensors : sequence of Tensor
        The center: one for each of the model's parameters, in their order.
    weight : float
        mu of FedProx, lambda of Ditto and pFedMe.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss on labeled images."""
        distances = _sum_over(
            (parameter - target).square()
            for parameter, target in zip(model.parameters(), self.tensors, strict=True)
        )
        return cross_entropy(model, images, labels) + self.weight / 2 * distances


@dataclass(frozen=True)
class Linear:
    """Cross-entropy whose gradient is that of itself plus ``<direction, w>``: the direction more.

    Attributes
    ----------
    tensors : sequence of Tensor
        The direction: one for each of the model's parameters, in their order; SCAFFOLD's
        ``c - c_i``.
    """

    tensors: Sequence[Tensor] = field(compare=False)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss on labeled images."""
        products = _sum_over(
            parameter * part
            for parameter, part in zip(model.parameters(), self.tensors, strict=True)
        )
        # The product itself says nothing: where it is 0 is arbitrary.
        return cross_entropy(model, images, labels) + products - products.detach()


def _sum_over(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.sum() for part in parts]).sum()


def flat_parameters(model: nn.Module) -> Tensor:
    """Return a copy of a model's parameters as one vector, in their order."""
    return parameters_to_vector(model.parameters()).detach()


def split_like_parameters(vector: Tensor, model: nn.Module) -> list[Tensor]:
    """Cut a flat vector into tensors of the shapes of a model's parameters, in their order."""
    parameters = list(model.parameters())
    parts = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [part.view_as(like) for part, like in zip(parts, parameters, strict=True)]


def parameters_of(model: nn.Module) -> list[Tensor]:
    """Return copies of a model's parameters, in their order, cut off from its gradients."""
    return [parameter.detach().clone() for parameter in model.parameters()]


@torch.no_grad()
def relative_distance(model: nn.Module, before: Sequence[Tensor]) -> float:
    """Return ``||w - before|| / ||before||`` over all of a model's parameters."""
    moved = [new - old for new, old in zip(model.parameters(), before, strict=True)]
    return float(_norm(moved) / _norm(before))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of all tensors as one vector."""
    return vector_norm(torch.stack([vector_norm(tensor) for tensor in tensors]))


@torch.no_grad()
def fill_parameters(model: nn.Module, values: Sequence[Tensor]) -> None:
    """Overwrite a model's parameters, in their order; its buffers stay as they are."""
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)
