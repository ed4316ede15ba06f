"""A model as flat vectors, one per kind, as parameter methods send it.

They are the floating-point entries of its state dict, in order: a counter of batches cannot be
averaged.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.models.layers import chosen_layers, own_tensors
from strategies.core.declarations import ALPHAS, BUFFERS, WEIGHTS, LayerChoice

ALL = slice(None)  # all layers of a model


def sent_tensors(model: nn.Module, layers: LayerChoice = ALL) -> Iterator[tuple[str, str, Tensor]]:
    """Yield a model's floating-point tensors with name and kind, not copied, as they are sent."""
    parameters = {name for name, _ in model.named_parameters()}
    chosen = {id(tensor) for layer in chosen_layers(model, layers) for tensor in own_tensors(layer)}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in chosen and tensor.is_floating_point():
            yield name, _kind_of(name, name in parameters), tensor.detach()


def tensors_by_kind(model: nn.Module, layers: LayerChoice = ALL) -> dict[str, list[Tensor]]:
    """Return a model's tensors by kind, in the order in which they are sent."""
    tensors: dict[str, list[Tensor]] = {}
    for _, kind, tensor in sent_tensors(model, layers):
        tensors.setdefault(kind, []).append(tensor)
    return tensors


def _kind_of(name: str, is_parameter: bool) -> str:
    if not is_parameter:
        return BUFFERS
    return ALPHAS if name.startswith("alpha") else WEIGHTS


def model_vectors(model: nn.Module, layers: LayerChoice = ALL) -> dict[str, NDArray[np.float32]]:
    """Return a model, or some of its layers, as flat vectors by kind, on the CPU."""
    return {
        kind: torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
        for kind, tensors in tensors_by_kind(model, layers).items()
    }


def matrix_shapes(model: nn.Module) -> NDArray[np.int64]:
    """Return rows and columns of each parameter in a model's weight vector, shape (L, 2).

    A kernel has one row per output channel, and a one-dimensional tensor one column.
    """
    tensors = map(torch.atleast_1d, tensors_by_kind(model)[WEIGHTS])
    shapes = [(len(tensor), tensor[0].numel()) for tensor in tensors]
    return np.array(shapes, dtype=np.int64)


@torch.no_grad()
def fill_from_vectors(
    model: nn.Module, vectors: Mapping[str, NDArray[Any]], layers: LayerChoice = ALL
) -> None:
    """Overwrite a model with vectors. Kinds that are not given do not change."""
    for kind, tensors in tensors_by_kind(model, layers).items():
        if kind not in vectors:
            continue
        sizes = [tensor.numel() for tensor in tensors]
        vector = torch.from_numpy(np.require(vectors[kind], requirements=["C", "W"]))
        if vector.shape != (sum(sizes),):
            raise ValueError(
                f"the model has {sum(sizes)} {kind}, and {len(vector)} were sent: another "
                "architecture or another size"
            )
        for tensor, values in zip(tensors, torch.split(vector, sizes), strict=True):
            tensor.copy_(values.view_as(tensor))


def copied_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters and buffers by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
