"""The genotype of a supernet, derived from alpha."""

from typing import Literal, get_args

import torch
from torch import Tensor

from fedkd_flwr.models.darts.genotype import Choice, Genotype, Node
from fedkd_flwr.models.darts.settings import CELL_INPUTS, NONE, SupernetSettings
from fedkd_flwr.models.darts.supernet import Supernet

Rule = Literal["two-edges", "every-edge"]
"""How a genotype is derived from alpha; see `derive_genotype`."""


def derive_genotype(supernet: Supernet, rule: Rule = "two-edges") -> Genotype:
    """Return the strongest architecture according to a supernet's alpha.

    Parameters
    ----------
    supernet : Supernet
        The supernet, with `alpha_normal` and `alpha_reduce`.
    rule : {"two-edges", "every-edge"}
        "two-edges" is the rule of DARTS, section 2.4: each edge is as strong as the softmax
        weight of its strongest operation other than "none", and each node keeps its two
        strongest edges. "every-edge" is the rule of FedKMA, figure 3: each edge keeps the
        operation with the largest alpha, and is removed if that is "none". A node that would
        lose all its edges keeps its strongest one, so that the network stays connected.

    Returns
    -------
    Genotype
        Edges of a node in the order of their sources. Of equal weights, the first is chosen.

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
