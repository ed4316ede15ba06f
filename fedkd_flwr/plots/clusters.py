"""Cluster assignment of each client, round by round."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedkd_flwr.plots.clients import client_order, client_ticks
from fedkd_flwr.plots.style import ABSENT, COLORS, FIGURE_WIDTH, new_figure, run_title
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
    labels = follow_clusters(run.matrices["clusters"])
    clients, ordered = client_order(run, order)
    count = max(int(labels.max()) + 1, 1)
    palette = ListedColormap([ABSENT, *(COLORS[i % len(COLORS)] for i in range(count))])
    figure, axes = new_figure("Round", f"Client{ordered}", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, max(2.4, 1.2 + 0.22 * len(clients)))
    rounds = len(labels)
    image = axes.imshow(
        labels[:, clients].T,
        cmap=palette,
        norm=BoundaryNorm(np.arange(-1.5, count), palette.N),
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, rounds + 0.5, len(clients) - 0.5, -0.5),
    )
    axes.set_yticks(*client_ticks(clients))
    axes.set_yticks(np.arange(len(clients) + 1) - 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, ticks=range(-1, count), label="Cluster")
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(["absent", *map(str, range(count))])
    axes.set_title(run_title(run), fontsize="medium")
    return figure


def follow_clusters(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber clusters so that a cluster keeps its number over rounds.

    k-means numbers its clusters arbitrarily in each round.

    Parameters
    ----------
    labels : ndarray
        Shape (rounds, N), -1 for absent clients.

    Returns
    -------
    ndarray
        Shape (rounds, N). As many clients as possible keep the cluster number of the last
        round in which they were present.
    """
    count = max(int(labels.max()) + 1, 0)
    followed = np.full_like(labels, -1)
    last_known = np.full(labels.shape[1], -1)
    for row, now in zip(followed, labels, strict=True):
        seen_again = (now >= 0) & (last_known >= 0)
        common = np.zeros((count, count))
        np.add.at(common, (now[seen_again], last_known[seen_again]), 1)
        _, number = linear_sum_assignment(common, maximize=True)
        row[now >= 0] = number[now[now >= 0]]
        last_known = np.where(now >= 0, row, last_known)
    return followed
