"""Cluster assignment of each client, round by round."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkd_flwr.analysis.figures import cluster_colors, clusters_of, run_title
from fedkd_flwr.plots.axes import ABSENT, FIGURE_WIDTH, client_ticks, new_figure
from fedkd_flwr.runs import Run


def plot_clusters(run: Run, order: Sequence[int] | None = None) -> Figure:
    """Draw each client's cluster over rounds; gray where a client did not participate.

    Parameters
    ----------
    run : Run
        A run of a method that clusters clients.
    order : sequence of int, optional
        Partition-ids from top to bottom; by default clients with similar labels are adjacent.

    Raises
    ------
    ValueError
        If the run has no clusters.
    """
    if "clusters" not in run.matrices:
        raise ValueError(f"{run.path.name} has no clusters.")
    labels, clients, ordered = clusters_of(run, order)
    number, rounds = labels.shape
    colors = cluster_colors(labels)
    palette = ListedColormap([ABSENT, *colors])
    figure, axes = new_figure("Round", f"Client{ordered}", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, max(2.4, 1.2 + 0.22 * number))
    image = axes.imshow(
        labels,
        cmap=palette,
        norm=BoundaryNorm(np.arange(-1.5, len(colors)), palette.N),
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, rounds + 0.5, number - 0.5, -0.5),
    )
    axes.set_yticks(*client_ticks(clients))
    axes.set_yticks(np.arange(number + 1) - 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, ticks=range(-1, len(colors)), label="Cluster")
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(["absent", *map(str, range(len(colors)))])
    axes.set_title(run_title(run), fontsize="medium")
    return figure
