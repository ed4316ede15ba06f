"""Operations that the clients' architecture searches select, by edge of the two cells."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from fedkd_flwr.analysis.figures import client_order
from fedkd_flwr.analysis.genotypes import CANDIDATES, client_genotypes, edges_of, kept_operations
from fedkd_flwr.analysis.line_styles import COLORS
from fedkd_flwr.plots.axes import ABSENT, FIGURE_WIDTH, client_ticks
from fedkd_flwr.runs import Run

PALETTE = ListedColormap([ABSENT, *COLORS[: len(CANDIDATES)]])
"""A color for a dropped edge, and one for each operation."""

LIMITS = BoundaryNorm(np.arange(-1.5, len(CANDIDATES)), PALETTE.N)


def plot_operations(run: Run, order: Sequence[int] | None = None) -> Figure:
    """Draw the operation that each client selects on each edge of its two cells.

    Parameters
    ----------
    run : Run
        A run of ``fedkma``, ``fedkma-uniform`` or ``fednas`` with ``models = darts``.
    order : sequence of int, optional
        Partition-ids from top to bottom; by default clients with similar labels are adjacent.

    Raises
    ------
    RunDirectoryError
        If the run has no architecture weights.
    """
    genotypes = client_genotypes(run)
    clients, ordered = client_order(run, order)
    cells = {
        "Normal cell": [genotypes[client].normal for client in clients],
        "Reduction cell": [genotypes[client].reduce for client in clients],
    }
    kept = {title: kept_operations(by_client) for title, by_client in cells.items()}
    height = max(2.8, 1.9 + 0.22 * len(clients))
    figure = Figure(figsize=(FIGURE_WIDTH, height), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    states = ["k-2", "k-1", *map(str, range(genotypes[0].nodes))]
    names = [f"{states[source]}→{node}" for source, node in edges_of(genotypes[0].nodes)]
    for axes, (title, matrix) in zip(panels, kept.items(), strict=True):
        _draw_choices(axes, matrix, names)
        axes.set_title(title, fontsize="medium")
    panels[0].set_yticks(*client_ticks(clients))
    panels[0].set_ylabel(f"Client{ordered}")
    patches = [
        Patch(
            color=PALETTE(LIMITS(choice)),
            label=CANDIDATES[choice].replace("_", " ") if choice >= 0 else "no edge",
        )
        for choice in np.unique([*kept.values()]).tolist()
    ]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=min(4, len(patches)), frameon=False
    )
    return figure


def _draw_choices(axes: Axes, kept: NDArray[np.int64], names: Sequence[str]) -> None:
    """Draw one cell: one row per client, one column per edge."""
    axes.imshow(kept, cmap=PALETTE, norm=LIMITS, aspect="auto", interpolation="nearest")
    turned = 90 if len(names) > 6 else 0
    axes.set_xticks(range(len(names)), names, rotation=turned, fontsize="small")
    axes.set_xticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(kept) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=2)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("Edge")
