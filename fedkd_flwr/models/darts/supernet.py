"""The search network: every edge mixes all candidate operations (DARTS, section 2.2)."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.darts.genotype import (
    CELL_INPUTS,
    NONE,
    POOLING,
    Choice,
    Genotype,
    Node,
    SearchSpace,
    SupernetSettings,
)
from fedkd_flwr.models.darts.operations import (
    CellInputs,
    CellPlan,
    Stem,
    build_operation,
    plan_cells,
)

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

    def __init__(self, settings: SupernetSettings, shape: Shape, classes: int) -> None:
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


def darts(shape: Shape, classes: int, search_space: SearchSpace) -> Supernet:
    """Build the supernet of a search space, with weights from PyTorch's global generator."""
    return Supernet(search_space.settings, shape, classes)


def _mixing_weights(alpha: Tensor) -> MixingWeights:
    # Split once per forward pass: one backward step for all scalars instead of one for each.
    return [row.unbind() for row in alpha.softmax(dim=1).unbind()]


Rule = Literal["two-edges", "every-edge"]
"""How a genotype is derived from alpha; see `derive_genotype`."""


def derive_genotype(supernet: Supernet, rule: Rule = "two-edges") -> Genotype:
    """Return the strongest architecture according to a supernet's alpha.

    "two-edges" is the rule of DARTS, section 2.4: each node keeps the two edges with the strongest
    operation other than "none". "every-edge" is the rule of FedKMA, figure 3: each edge keeps its
    strongest operation, and is removed if that is "none", unless the node would lose all.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"unknown rule {rule!r}; choose one of {', '.join(get_args(Rule))}")
    return Genotype(
        normal=_derive_cell(supernet.alpha_normal, supernet.settings, rule),
        reduce=_derive_cell(supernet.alpha_reduce, supernet.settings, rule),
    )


def _derive_cell(alpha: Tensor, settings: SupernetSettings, rule: Rule) -> tuple[Node, ...]:
    weights = alpha.detach().softmax(dim=1).cpu()
    allowed = torch.tensor([name != NONE for name in settings.operations])
    strength, column = weights.masked_fill(~allowed, -1).max(dim=1)
    kept = allowed[weights.argmax(dim=1)]
    nodes: list[Node] = []
    first = 0
    for node in range(settings.nodes):
        edges = range(first, first + CELL_INPUTS + node)
        by_strength = sorted(edges, key=lambda edge: -float(strength[edge]))
        if rule == "two-edges":
            chosen = by_strength[:2]
        else:
            chosen = [edge for edge in edges if kept[edge]] or by_strength[:1]
        nodes.append(
            tuple(
                Choice(settings.operations[int(column[edge])], edge - first)
                for edge in sorted(chosen)
            )
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
    """Network of one genotype, in the size of the search space's supernet."""

    def __init__(self, search_space: SearchSpace, shape: Shape, classes: int) -> None:
        super().__init__()
        settings, genotype = search_space.settings, search_space.genotype
        stem_channels = settings.stem_multiplier * settings.channels
        plans = list(
            plan_cells(settings.channels, settings.cells, genotype.nodes, settings.stem_multiplier)
        )
        self.stem = Stem(shape[0], stem_channels, settings.stem_stride, affine=True)
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


def darts_fixed(shape: Shape, classes: int, search_space: SearchSpace) -> FixedNetwork:
    """Build the network of a search space's genotype with its supernet's channels and cells."""
    return FixedNetwork(search_space, shape, classes)
