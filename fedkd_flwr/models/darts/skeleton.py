"""Parts shared by the supernet and fixed networks: stem, order of cells, a cell's inputs."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedkd_flwr.models.darts.operations import HalvedResolution, pointwise


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
