"""DARTS: search of a network's cells by gradient descent.

H. Liu, K. Simonyan, Y. Yang, *DARTS: Differentiable Architecture Search*, ICLR 2019,
arXiv:1806.09055.

A network is a stack of two kinds of cells, normal and reduction. A cell is a small graph: each
inner node is the sum of operations on the states before it. In the `Supernet` every edge
computes all candidate operations, mixed by the softmax of architecture weights alpha, which
are trained together with the network weights omega. The strongest operations form a `Genotype`.
`FixedNetwork` has the cells that DARTS published. The caller decides how alpha and omega are
trained.

Differences from the paper
--------------------------
- Running statistics of batch normalization are kept and used in evaluation, so that the
  logits of an image do not depend on its neighbors. The paper's search always uses the
  statistics of the batch.
- Batch normalization in the supernet has no learnable scale and shift, as in the paper. The
  authors' code has them in the stem: 1,930,618 network weights there, 1,930,522 here.
- Poolings in the supernet are followed by batch normalization, as in the authors' code. The
  paper does not mention it.
- "none" is never computed. It adds zero, and only has a weight in the softmax.
- Images may have any size. An odd side is padded with zeros before it is halved.
- The stem may have a stride (`stem_stride`), for training without a GPU.
- At least three cells, or there would be no normal cell and its alpha would not be trained.
- Genotypes are derived by FedKMA's rule, which keeps more or fewer than two edges per node.
- Fixed networks have no auxiliary head and no drop-path.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.genotype import (
    CELL_INPUTS,
    NONE,
    POOLING,
    PUBLISHED_GENOTYPE,
    Choice,
    Genotype,
    Node,
    SupernetSettings,
)

# ---- Operations and other parts of networks --------------------------------------------


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


# ---- The supernet, and fixed networks ----------------------------------------------------

INITIAL_ALPHA_SCALE = 1e-3
"""Standard deviation of initial architecture weights, which mix nearly equally."""

MixingWeights = Sequence[Sequence[Tensor]]
"""Softmax of alpha as scalars: one sequence per edge, one scalar per operation."""


class MixedOperation(nn.Module):
    """One edge: the weighted sum of its candidate operations (DARTS, equation 2).

    Poolings are followed by batch normalization, so that all candidates have the same scale.
    """

    def __init__(self, channels: int, stride: int, operations: tuple[str, ...]) -> None:
        super().__init__()
        self.candidates = nn.ModuleDict()
        for name in operations:
            if name == NONE:
                continue
            operation = build_operation(name, channels, stride, affine=False)
            if name in POOLING:
                operation = nn.Sequential(operation, nn.BatchNorm2d(channels, affine=False))
            self.candidates[name] = operation
        # "none" has a weight in the softmax but adds zero, so nothing is computed for it.
        self._columns = [column for column, name in enumerate(operations) if name != NONE]

    def forward(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Mix the candidates, with one scalar weight for each, "none" included."""
        mixed: Tensor | None = None
        for column, operation in zip(self._columns, self.candidates.values(), strict=True):
            output = operation(x)
            if mixed is None:
                mixed = weights[column] * output
            else:
                mixed = torch.addcmul(mixed, weights[column], output)
        assert mixed is not None  # the settings refuse an edge with only "none"
        return mixed


class SearchCell(nn.Module):
    """A cell with mixed operations on all edges."""

    def __init__(self, plan: CellPlan, settings: SupernetSettings) -> None:
        super().__init__()
        self.nodes = settings.nodes
        self.inputs = CellInputs(plan, affine=False)
        # Edges in the order of alpha's rows: by node, and by input within a node.
        self.edges = nn.ModuleList(
            MixedOperation(
                plan.channels,
                2 if plan.reduces and source < CELL_INPUTS else 1,
                settings.operations,
            )
            for node in range(settings.nodes)
            for source in range(CELL_INPUTS + node)
        )

    def forward(self, before_last: Tensor, last: Tensor, weights: MixingWeights) -> Tensor:
        """Return the inner nodes, concatenated: (N, nodes * channels, h, w)."""
        states: list[Tensor] = self.inputs(before_last, last)
        edges = zip(self.edges, weights, strict=True)
        for _ in range(self.nodes):
            # A node takes as many of the remaining edges as there are states before it.
            terms = [edge(state, row) for state, (edge, row) in zip(states, edges, strict=False)]
            states.append(sum(terms[1:], start=terms[0]))
        return torch.cat(states[CELL_INPUTS:], dim=1)


class Supernet(nn.Module):
    """Network that contains every candidate network, and the weights that select among them.

    `alpha_normal` and `alpha_reduce`, each (edges, operations), are the architecture weights of
    normal and of reduction cells, under these names in the state dict.
    """

    def __init__(self, shape: Shape, classes: int, settings: SupernetSettings) -> None:
        super().__init__()
        self.settings = settings
        size = (settings.edges, len(settings.operations))
        self.alpha_normal = nn.Parameter(INITIAL_ALPHA_SCALE * torch.randn(size))
        self.alpha_reduce = nn.Parameter(INITIAL_ALPHA_SCALE * torch.randn(size))
        self._plans = list(
            plan_cells(settings.channels, settings.cells, settings.nodes, settings.stem_multiplier)
        )
        self.stem = Stem(
            shape[0],
            settings.stem_multiplier * settings.channels,
            settings.stem_stride,
            affine=False,
        )
        self.cells = nn.ModuleList(SearchCell(plan, settings) for plan in self._plans)
        self.classifier = nn.Linear(settings.nodes * self._plans[-1].channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, channels, height, width)."""
        normal = _mixing_weights(self.alpha_normal)
        reduce = _mixing_weights(self.alpha_reduce)
        before_last = last = self.stem(images)
        for plan, cell in zip(self._plans, self.cells, strict=True):
            weights = reduce if plan.reduces else normal
            before_last, last = last, cell(before_last, last, weights)
        logits: Tensor = self.classifier(last.mean(dim=(2, 3)))
        return logits


def _mixing_weights(alpha: Tensor) -> MixingWeights:
    # Split once per forward pass: one backward step for all scalars instead of one for each.
    return [row.unbind() for row in alpha.softmax(dim=1).unbind()]


def derive_genotype(supernet: Supernet) -> Genotype:
    """Return the strongest architecture according to a supernet's alpha.

    Each edge keeps its strongest operation, and is removed if that is "none", unless the node would
    lose all (FedKMA, figure 3).
    """
    return Genotype(
        normal=_derive_cell(supernet.alpha_normal, supernet.settings),
        reduce=_derive_cell(supernet.alpha_reduce, supernet.settings),
    )


def _derive_cell(alpha: Tensor, settings: SupernetSettings) -> tuple[Node, ...]:
    weights = alpha.detach().softmax(dim=1).cpu()
    allowed = torch.tensor([name != NONE for name in settings.operations])
    strength, column = weights.masked_fill(~allowed, -1).max(dim=1)
    kept = allowed[weights.argmax(dim=1)]
    nodes: list[Node] = []
    first = 0
    for node in range(settings.nodes):
        edges = range(first, first + CELL_INPUTS + node)
        strongest = max(edges, key=lambda edge: float(strength[edge]))
        chosen = [edge for edge in edges if kept[edge]] or [strongest]
        nodes.append(
            tuple(Choice(settings.operations[int(column[edge])], edge - first) for edge in chosen)
        )
        first = edges.stop
    return tuple(nodes)


class FixedNode(nn.Module):
    """An inner node: the sum of one operation on each of its edges."""

    def __init__(self, choices: Node, plan: CellPlan) -> None:
        super().__init__()
        self.operations = nn.ModuleList(
            build_operation(
                operation,
                plan.channels,
                stride=2 if plan.reduces and source < CELL_INPUTS else 1,
                affine=True,
            )
            for operation, source in choices
        )
        self._sources = [choice.source for choice in choices]

    def forward(self, states: list[Tensor]) -> Tensor:
        """Return the node's state (N, channels, h, w) from the states before it."""
        terms = [
            operation(states[source])
            for operation, source in zip(self.operations, self._sources, strict=True)
        ]
        return sum(terms[1:], start=terms[0])


class FixedCell(nn.Module):
    """A cell with one operation on each kept edge."""

    def __init__(self, plan: CellPlan, nodes: tuple[Node, ...]) -> None:
        super().__init__()
        self.inputs = CellInputs(plan, affine=True)
        self.nodes = nn.ModuleList(FixedNode(choices, plan) for choices in nodes)

    def forward(self, before_last: Tensor, last: Tensor) -> Tensor:
        """Return the inner nodes, concatenated: (N, nodes * channels, h, w)."""
        states: list[Tensor] = self.inputs(before_last, last)
        for node in self.nodes:
            states.append(node(states))
        return torch.cat(states[CELL_INPUTS:], dim=1)


class FixedNetwork(nn.Module):
    """Network of the cells that DARTS published, with a supernet's channels and number of cells."""

    def __init__(self, shape: Shape, classes: int, settings: SupernetSettings) -> None:
        super().__init__()
        genotype, multiplier = PUBLISHED_GENOTYPE, settings.stem_multiplier
        plans = list(plan_cells(settings.channels, settings.cells, genotype.nodes, multiplier))
        channels = multiplier * settings.channels
        self.stem = Stem(shape[0], channels, settings.stem_stride, affine=True)
        self.cells = nn.ModuleList(
            FixedCell(plan, genotype.reduce if plan.reduces else genotype.normal) for plan in plans
        )
        self.classifier = nn.Linear(genotype.nodes * plans[-1].channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, channels, height, width)."""
        before_last = last = self.stem(images)
        for cell in self.cells:
            before_last, last = last, cell(before_last, last)
        logits: Tensor = self.classifier(last.mean(dim=(2, 3)))
        return logits
