"""A model as flat vectors, one a kind, in which parameter methods send it.

Both sides read the layout off the architecture: the floating-point entries of its state dict in
their order. Batch normalization's counter of batches stays at home: it is no quantity to average.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

WEIGHTS, BUFFERS, ALPHAS = "weights", "buffers", "alphas"
"""The kinds: network weights, running statistics, architecture weights of a search."""

KINDS = (WEIGHTS, BUFFERS, ALPHAS)


def tensors_by_kind(model: nn.Module) -> dict[str, list[Tensor]]:
    """Return a model's floating-point tensors by kind, in the order in which they travel.

    Returns
    -------
    dict of str to list of Tensor
        The tensors themselves, detached; a kind that the model lacks is left out.
    """
    parameters = {name for name, _ in model.named_parameters()}
    tensors: dict[str, list[Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensors.setdefault(_kind_of(name, name in parameters), []).append(tensor)
    return tensors


def _kind_of(name: str, is_parameter: bool) -> str:
    if not is_parameter:
        return BUFFERS
    return ALPHAS if name.startswith("alpha") else WEIGHTS


def model_vectors(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Return a model as flat vectors by kind, on the CPU."""
    return {
        kind: torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu().numpy()
        for kind, tensors in tensors_by_kind(model).items()
    }


def matrix_shapes(model: nn.Module) -> NDArray[np.int64]:
    """Return the rows and columns of each stretch of a model's weights, shape (L, 2).

    A kernel has a row for each output channel, and whatever has one dimension a single column.
    """
    shapes = [(len(tensor), tensor[0].numel()) for tensor in tensors_by_kind(model)[WEIGHTS]]
    return np.array(shapes, dtype=np.int64)


@torch.no_grad()
def fill_from_vectors(model: nn.Module, vectors: Mapping[str, NDArray[Any]]) -> None:
    """Overwrite a model with vectors; kinds that are not given stay as they are.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    vectors : mapping of str to ndarray
        Shape (length,), by kind; other names are passed over.

    Raises
    ------
    ValueError
        If a vector has another length than the model's entries of its kind.
    """
    for kind, tensors in tensors_by_kind(model).items():
        if kind not in vectors:
            continue
        sizes = [tensor.numel() for tensor in tensors]
        vector = torch.from_numpy(np.ascontiguousarray(vectors[kind]))
        if vector.shape != (sum(sizes),):
            raise ValueError(
                f"the model has {sum(sizes)} {kind}, and {len(vector)} were sent: another "
                "architecture or another size"
            )
        for tensor, values in zip(tensors, torch.split(vector, sizes), strict=True):
            tensor.copy_(values.view_as(tensor))
