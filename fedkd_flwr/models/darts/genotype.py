"""Architectures as discrete choices: read from a supernet, and written as text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fedkd_flwr.models.darts.operations import NONE, OPERATIONS
from fedkd_flwr.models.darts.skeleton import CELL_INPUTS
from fedkd_flwr.models.darts.supernet import Supernet, SupernetSettings

Rule = Literal["two-edges", "every-edge"]
"""How a genotype is read from alpha; `derive_genotype` says what each rule keeps."""


class Choice(NamedTuple):
    """One kept edge of a cell.

    Attributes
    ----------
    operation : str
        Name of the operation on the edge, not "none".
    source : int
        State that the edge starts from: 0 and 1 are the outputs of the cell before last and
        of the last cell, 2 is the cell's first inner node, and so on.
    """

    operation: str
    source: int


Node = tuple[Choice, ...]
"""The edges into one inner node; the node is the sum of their outputs."""


@dataclass(frozen=True)
class Genotype:
    """Architecture of a network: the edges of its normal and of its reduction cells.

    Attributes
    ----------
    normal, reduce : tuple of tuple of Choice
        For each inner node, in order, the edges into it. Both cells have as many nodes.

    Raises
    ------
    ValueError
        If a node has no edge, two edges from one state, or an edge from a state that does not
        come before it, if an operation is unknown or "none", or if the cells differ in size.
    """

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

    @property
    def concat(self) -> range:
        """States whose concatenation is a cell's output: all inner nodes, as in the paper."""
        return range(CELL_INPUTS, CELL_INPUTS + self.nodes)

    def to_text(self) -> str:
        """Return the genotype as one line of JSON, which `from_text` reads."""
        return json.dumps({"normal": self.normal, "reduce": self.reduce})

    @classmethod
    def from_text(cls, text: str) -> "Genotype":
        """Read a genotype from the JSON of `to_text`.

        Parameters
        ----------
        text : str
            An object of ``normal`` and ``reduce``; each a list of nodes, each a list of
            ``[operation, source]``.

        Returns
        -------
        Genotype
            Equal to the one that was written.

        Raises
        ------
        ValueError
            If the text is not of that form, or describes no valid genotype.
        """
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


def derive_genotype(supernet: Supernet, rule: Rule = "two-edges") -> Genotype:
    """Read the strongest architecture from a supernet's alpha.

    Parameters
    ----------
    supernet : Supernet
        Its `alpha_normal` and `alpha_reduce` decide.
    rule : {"two-edges", "every-edge"}
        "two-edges" is the rule of DARTS, section 2.4: each edge is as strong as the softmax
        weight of its strongest operation other than "none", and each node keeps its two
        strongest edges. "every-edge" is the rule of FedKMA, figure 3: each edge keeps the
        operation of largest alpha, and goes where that is "none". A node that would lose
        all its edges keeps its strongest one, so that the network stays connected.

    Returns
    -------
    Genotype
        Edges of a node in the order of their sources. Of equal weights the first wins.

    Raises
    ------
    ValueError
        If the rule is unknown.
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
