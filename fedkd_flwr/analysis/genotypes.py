"""Results of an architecture search: the genotypes of the clients."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.models.darts.derivation import Rule, derive_genotype
from fedkd_flwr.models.darts.genotype import Genotype, Node
from fedkd_flwr.models.darts.settings import CELL_INPUTS, NONE, OPERATIONS
from fedkd_flwr.models.darts.supernet import Supernet
from fedkd_flwr.models.vectors import fill_from_vectors
from fedkd_flwr.runs import Run, RunDirectoryError, recorded_config
from strategies.core.vector_kinds import ALPHAS

CANDIDATES = [name for name in OPERATIONS if name != NONE]
"""Operations that an edge can have."""


def client_genotypes(run: Run, rule: Rule = "every-edge") -> list[Genotype]:
    """Read every client's genotype from its architecture weights after the last round.

    Parameters
    ----------
    run : Run
        A run of ``fedkma``, ``fedkma-uniform`` or ``fednas`` with ``models = darts``.
    rule : {"every-edge", "two-edges"}
        Which edges are kept; see `fedkd_flwr.models.darts.derivation.derive_genotype`. FedKMA
        keeps every edge with its strongest operation.

    Returns
    -------
    list of Genotype
        By partition-id.

    Raises
    ------
    RunDirectoryError
        If the run has no architecture weights.
    """
    if ALPHAS not in run.matrices:
        raise RunDirectoryError(
            f"{run.path} has no architecture weights. Only runs of fedkma, fedkma-uniform and "
            "fednas with models = darts have them."
        )
    settings = recorded_config(run).run.models.search_space.settings
    # The rules only read the architecture weights, so the smallest network suffices.
    supernet = Supernet(replace(settings, channels=1, cells=3), (1, 8, 8), 2)
    genotypes = []
    for alphas in run.matrices[ALPHAS][-1]:
        fill_from_vectors(supernet, {ALPHAS: alphas})
        genotypes.append(derive_genotype(supernet, rule))
    return genotypes


def edges_of(nodes: int) -> list[tuple[int, int]]:
    """Return the edges of a cell by source state and node."""
    return [(source, node) for node in range(nodes) for source in range(node + CELL_INPUTS)]


def kept_operations(cells: Sequence[tuple[Node, ...]]) -> NDArray[np.int64]:
    """Return the index in `CANDIDATES` of the operation that clients keep on each edge.

    Parameters
    ----------
    cells : sequence
        One cell per client.

    Returns
    -------
    ndarray
        Shape (clients, edges) in the order of `edges_of`, -1 for a dropped edge.
    """
    edges = edges_of(len(cells[0]))
    kept = np.full((len(cells), len(edges)), -1)
    for row, cell in zip(kept, cells, strict=True):
        for node, choices in enumerate(cell):
            for operation, source in choices:
                row[edges.index((source, node))] = CANDIDATES.index(operation)
    return kept
