"""The network of one genotype, trained from scratch after the search (DARTS, section 3.2)."""

import torch
from torch import Tensor, nn

from fedkd_flwr.data.registry import Shape
from fedkd_flwr.models.darts.genotype import Node, SearchSpace
from fedkd_flwr.models.darts.operations import build_operation
from fedkd_flwr.models.darts.settings import CELL_INPUTS
from fedkd_flwr.models.darts.skeleton import CellInputs, CellPlan, Stem, plan_cells


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
