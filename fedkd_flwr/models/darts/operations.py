"""Candidate operations on the edges of a cell (DARTS, section 3.1.1 and appendix A.1.1)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class HalvedResolution(nn.Module):
    """Map (N, inputs, h, w) to (N, outputs, ceil(h/2), ceil(w/2)), using every pixel.

    Half of the output channels use the pixels at even positions, half those at odd positions.
    """

    def __init__(self, inputs: int, outputs: int, affine: bool) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.normalization = nn.BatchNorm2d(outputs, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        """Halve the resolution of x (N, inputs, h, w)."""
        x = functional.relu(x)
        # A shift by one pixel that keeps the size, so that odd sides give halves of equal size.
        shifted = functional.pad(x, (-1, 1, -1, 1))
        # The pixels are selected here instead of by a stride. With few channels, PyTorch's gradient
        # of a 1x1 convolution with a stride writes out of bounds on processors without AVX-512
        # (an open bug of oneDNN, issue 6035).
        halves = [self.even(x[:, :, ::2, ::2]), self.odd(shifted[:, :, ::2, ::2])]
        output: Tensor = self.normalization(torch.cat(halves, dim=1))
        return output


def pointwise(inputs: int, outputs: int, affine: bool) -> nn.Module:
    """Return ReLU, 1x1 convolution and batch normalization, which may learn if `affine`."""
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, affine=affine)
    )


def _depthwise(
    channels: int, kernel: int, stride: int, affine: bool, dilation: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(
            channels,
            channels,
            kernel,
            stride=stride,
            padding=dilation * (kernel // 2),
            dilation=dilation,
            groups=channels,
            bias=False,
        ),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels, affine=affine),
    )


def _separable(channels: int, kernel: int, stride: int, affine: bool) -> nn.Module:
    """Return a separable convolution, applied twice as section 3.1.1 says."""
    return nn.Sequential(
        *_depthwise(channels, kernel, stride, affine), *_depthwise(channels, kernel, 1, affine)
    )


def _skip(channels: int, stride: int, affine: bool) -> nn.Module:
    return nn.Identity() if stride == 1 else HalvedResolution(channels, channels, affine)


_BUILDERS: dict[str, Callable[[int, int, bool], nn.Module]] = {
    "max_pool_3x3": lambda channels, stride, affine: nn.MaxPool2d(3, stride, padding=1),
    "avg_pool_3x3": lambda channels, stride, affine: nn.AvgPool2d(
        3, stride, padding=1, count_include_pad=False
    ),
    "skip_connect": _skip,
    "sep_conv_3x3": lambda channels, stride, affine: _separable(channels, 3, stride, affine),
    "sep_conv_5x5": lambda channels, stride, affine: _separable(channels, 5, stride, affine),
    "dil_conv_3x3": lambda channels, stride, affine: _depthwise(channels, 3, stride, affine, 2),
    "dil_conv_5x5": lambda channels, stride, affine: _depthwise(channels, 5, stride, affine, 2),
}


def build_operation(name: str, channels: int, stride: int, affine: bool) -> nn.Module:
    """Build one operation other than ``none``, which maps (N, channels, h, w) to h/stride."""
    if name not in _BUILDERS:
        raise ValueError(f"cannot build operation {name!r}; choose one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name](channels, stride, affine)


class CellPlan(NamedTuple):
    """Position and channels of one cell; one that reduces halves the resolution."""

    before_last: int
    last: int
    channels: int
    reduces: bool
    last_reduces: bool


def plan_cells(channels: int, cells: int, nodes: int, stem_multiplier: int) -> Iterator[CellPlan]:
    """Yield the cells of a network in order (DARTS, section 3.1.1).

    The cells at 1/3 and 2/3 of the depth are reduction cells and double the channels.
    """
    before_last = last = stem_multiplier * channels
    last_reduces = False
    for position in range(cells):
        reduces = position in (cells // 3, 2 * cells // 3)
        channels *= 2 if reduces else 1
        yield CellPlan(before_last, last, channels, reduces, last_reduces)
        before_last, last, last_reduces = last, nodes * channels, reduces


class Stem(nn.Module):
    """First layer: 3x3 convolution and batch normalization, which learns if `affine`."""

    def __init__(self, inputs: int, outputs: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.normalization = nn.BatchNorm2d(outputs, affine=affine)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (N, outputs, ceil(h/stride), ceil(w/stride)) of images."""
        features: Tensor = self.normalization(self.convolution(images))
        # All later layers keep this memory format, in which depthwise convolutions are faster.
        return features.contiguous(memory_format=torch.channels_last)


class CellInputs(nn.Module):
    """Map the outputs of the two cells before to the same channels and resolution."""

    def __init__(self, plan: CellPlan, affine: bool) -> None:
        super().__init__()
        # After a reduction cell, the output of the cell before that is still twice as large.
        adapt = HalvedResolution if plan.last_reduces else pointwise
        self.before_last = adapt(plan.before_last, plan.channels, affine)
        self.last = pointwise(plan.last, plan.channels, affine)

    def forward(self, before_last: Tensor, last: Tensor) -> list[Tensor]:
        """Return the cell's two input nodes, each (N, channels, h, w)."""
        return [self.before_last(before_last), self.last(last)]
