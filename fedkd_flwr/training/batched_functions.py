"""PyTorch's functions in a form that can be computed for several clients at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedkd_flwr.training.loop import Batch, Loss

NO_LABEL = -100
"""The label of samples that PyTorch's cross-entropy ignores."""

USUAL = {
    "weight": None,
    "size_average": None,
    "ignore_index": NO_LABEL,
    "reduce": None,
    "reduction": "mean",
    "label_smoothing": 0.0,
}.items()
"""PyTorch's defaults for a cross-entropy."""


class BatchedFunctions(TorchFunctionMode):
    """While active, replaces some functions by forms that are fast for several clients.

    Under `torch.func.vmap` PyTorch decomposes a cross-entropy in Python, and first imports a
    library for symbolic mathematics; gradients here are the same to the last bit. A linear layer is
    its weight times the inputs, since an optimizer step across two memory orders is several times
    as slow. Stacked tensors have no memory formats. A single client is faster with PyTorch's own
    functions.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func is functional.cross_entropy and _has_plain_labels(args, named):
            return mean_cross_entropy(*args)
        if func is functional.linear and _is_matrix_product(args):
            return linear(*args, **named)
        if func is Tensor.contiguous:
            return func(args[0])
        return func(*args, **named)


def _has_plain_labels(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Return whether a cross-entropy is the mean over logits (n, K) and labels (n,)."""
    if len(arguments) != 2 or any(named.get(name, usual) != usual for name, usual in USUAL):
        return False
    logits, labels = arguments
    return logits.dim() == 2 and labels.dim() == 1 and labels.dtype == torch.int64


def _is_matrix_product(arguments: tuple[Any, ...]) -> bool:
    """Return whether a linear layer's inputs and weight are matrices."""
    return len(arguments) >= 2 and all(tensor.dim() == 2 for tensor in arguments[:2])


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (n, K), ignoring samples with `NO_LABEL`."""
    counts = labels != NO_LABEL
    classes = labels.where(counts, 0).unsqueeze(1)
    losses = -functional.log_softmax(logits, dim=1).gather(1, classes).squeeze(1)
    return losses.where(counts, 0).sum() / counts.sum()


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a linear layer's outputs, (n, outputs), for inputs (n, features)."""
    outputs = (weight @ inputs.mT).mT
    # In PyTorch's own memory order, because a network may view them in another shape.
    return (outputs if bias is None else outputs + bias).contiguous()


class Objective(nn.Module):
    """A model and its loss as one module, so that the loss can use the weights too."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, tensors: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the loss. `tensors` replace those of the loss, if there are any."""
        loss: Any = self.loss
        own = replace(loss, tensors=tensors) if tensors else loss
        with BatchedFunctions():
            value: Tensor = own(self.model, *batch)
        return value
