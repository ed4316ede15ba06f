"""Discrete architectures, their text form, and the search space that they are in."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedkd_flwr.models.darts.settings import CELL_INPUTS, NONE, OPERATIONS, SupernetSettings


class Choice(NamedTuple):
    """One kept edge of a cell: its operation, which is not "none", and the state it starts from.

    The states 0 and 1 are the outputs of the cell before last and of the last cell.
    """

    operation: str
    source: int


Node = tuple[Choice, ...]
"""The edges into one inner node. The node is the sum of their outputs."""


@dataclass(frozen=True)
class Genotype:
    """Architecture of a network: the edges of its normal and its reduction cells."""

    normal: tuple[Node, ...]
    reduce: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.normal or len(self.normal) != len(self.reduce):
            raise ValueError(
                "both cells of a genotype need the same number of nodes, at least 1, "
                f"got {len(self.normal)} and {len(self.reduce)}"
            )
        for cell in (self.normal, self.reduce):
            for state, choices in enumerate(cell, start=CELL_INPUTS):
                _check_node(state, choices)

    @property
    def nodes(self) -> int:
        """Number of inner nodes of a cell."""
        return len(self.normal)

    def to_text(self) -> str:
        """Return the genotype as one line of JSON, which `from_text` reads."""
        return json.dumps({"normal": self.normal, "reduce": self.reduce})

    @classmethod
    def from_text(cls, text: str) -> "Genotype":
        """Read a genotype from the JSON of `to_text`. Raises `ValueError` if it is none."""
        try:
            cells = json.loads(text)
            normal, reduce = (
                tuple(
                    tuple(Choice(str(operation), int(source)) for operation, source in node)
                    for node in cells[name]
                )
                for name in ("normal", "reduce")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                'a genotype is JSON of the form {"normal": [[["skip_connect", 0]]], '
                f'"reduce": [[["skip_connect", 0]]]}}, got {text!r}'
            ) from error
        return cls(normal, reduce)


def _check_node(state: int, choices: Sequence[Choice]) -> None:
    name = f"node {state - CELL_INPUTS} of a genotype"
    sources = [choice.source for choice in choices]
    if not sources or len(set(sources)) < len(sources):
        raise ValueError(f"{name} needs at least one edge, and no two from one state")
    for operation, source in choices:
        if operation == NONE or operation not in OPERATIONS:
            raise ValueError(f"{name} has unknown operation {operation!r}")
        if not 0 <= source < state:
            raise ValueError(
                f"{name} has an edge from state {source}, allowed are 0 to {state - 1}"
            )


PUBLISHED_GENOTYPE = Genotype(
    normal=(
        (Choice("sep_conv_3x3", 0), Choice("sep_conv_3x3", 1)),
        (Choice("sep_conv_3x3", 0), Choice("sep_conv_3x3", 1)),
        (Choice("skip_connect", 0), Choice("sep_conv_3x3", 1)),
        (Choice("skip_connect", 0), Choice("dil_conv_3x3", 2)),
    ),
    reduce=(
        (Choice("max_pool_3x3", 0), Choice("max_pool_3x3", 1)),
        (Choice("max_pool_3x3", 1), Choice("skip_connect", 2)),
        (Choice("max_pool_3x3", 0), Choice("skip_connect", 2)),
        (Choice("max_pool_3x3", 1), Choice("skip_connect", 2)),
    ),
)
"""The cells that DARTS found on CIFAR-10 with second-order search (its figures 4 and 5)."""


@dataclass(frozen=True)
class SearchSpace:
    """Size of a supernet, and the genotype of a fixed network of the same size."""

    settings: SupernetSettings = field(default_factory=SupernetSettings)
    genotype: Genotype = PUBLISHED_GENOTYPE
