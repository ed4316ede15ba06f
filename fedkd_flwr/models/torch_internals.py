"""What a model's layers and an optimizer do, read from private names of PyTorch, used only here."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

BufferPlace = tuple[dict[str, Tensor | None], str, Tensor | None]
"""A module's buffers, the name of one, and its value."""


def convolves(model: nn.Module) -> bool:
    """Return whether a model has a convolution."""
    return any(isinstance(layer, _ConvNd) for layer in model.modules())


def draws_while_training(model: nn.Module) -> bool:
    """Return whether a model draws random numbers from PyTorch in training mode."""
    return any(isinstance(layer, _DropoutNd) for layer in model.modules())


def is_batch_norm(layer: nn.Module) -> bool:
    """Return whether a layer is batch normalization, of any number of dimensions."""
    return isinstance(layer, _BatchNorm)


def mixes_samples(model: nn.Module) -> bool:
    """Return whether a model has batch normalization, or keeps running statistics of samples."""
    return any(
        is_batch_norm(layer) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
        for layer in model.modules()
    )


def tracking_batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return a model's layers of batch normalization that keep running statistics."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer calls functions before or after a step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def unsent_buffers(model: nn.Module) -> Iterator[BufferPlace]:
    """Yield the buffers that neither messages nor memories hold.

    These are integers, such as counters, and buffers outside the state dict.
    """
    for module in model.modules():
        # `named_buffers` leaves out those that are None, and says nothing about the state dict.
        for name, buffer in module._buffers.items():
            is_outside = name in module._non_persistent_buffers_set
            if is_outside or (buffer is not None and not buffer.is_floating_point()):
                yield module._buffers, name, buffer
