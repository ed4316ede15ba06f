"""Terms that methods add to a client's loss."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fedkd_flwr.training.loop import Loss


def proximal(loss: Loss, center: Sequence[Tensor], weight: float) -> Loss:
    """Add ``weight / 2 * ||w - center||²`` to a loss.

    Parameters
    ----------
    loss : callable
        Mean loss of a model on a batch.
    center : sequence of Tensor
        One tensor for each of the model's parameters, in their order.
    weight : float
        mu of FedProx, lambda of Ditto and pFedMe.
    """

    def regularized(model: nn.Module, *batch: Tensor) -> Tensor:
        distances = [
            (parameter - target).square().sum()
            for parameter, target in zip(model.parameters(), center, strict=True)
        ]
        return loss(model, *batch) + weight / 2 * torch.stack(distances).sum()

    return regularized


def linear(loss: Loss, direction: Sequence[Tensor]) -> Loss:
    """Add ``<direction, w>`` to a loss, and so `direction` to its gradient.

    Parameters
    ----------
    loss : callable
        Mean loss of a model on a batch.
    direction : sequence of Tensor
        One tensor for each of the model's parameters, in their order; SCAFFOLD's ``c - c_i``.
    """

    def regularized(model: nn.Module, *batch: Tensor) -> Tensor:
        products = [
            (parameter * part).sum()
            for parameter, part in zip(model.parameters(), direction, strict=True)
        ]
        return loss(model, *batch) + torch.stack(products).sum()

    return regularized


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
    moved = torch.stack(
        [(new - old).square().sum() for new, old in zip(model.parameters(), before, strict=True)]
    )
    norm = torch.stack([old.square().sum() for old in before])
    return float((moved.sum() / norm.sum()).sqrt())


@torch.no_grad()
def fill_parameters(model: nn.Module, values: Sequence[Tensor]) -> None:
    """Overwrite a model's parameters, in their order; its buffers stay as they are."""
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)
