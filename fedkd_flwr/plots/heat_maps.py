"""Matrices as heat maps: who learns from whom, clusters by round, and the split of the data."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedkd_flwr.analysis.client_models import label_counts
from fedkd_flwr.analysis.cross import Cross
from fedkd_flwr.analysis.figures import (
    client_order,
    cluster_colors,
    data_title,
    follow_clusters,
    run_title,
    sharing_matrices,
)
from fedkd_flwr.plots.axes import ABSENT, FIGURE_WIDTH, client_ticks, new_figure, percent
from fedkd_flwr.runs import Run


def draw_matrix(
    axes: Axes,
    matrix: NDArray[np.float64],
    rows: NDArray[Any],
    columns: NDArray[Any],
    limits: tuple[float, float] = (0, 1),
    row_names: Mapping[int, str] | None = None,
    column_names: Mapping[int, str] | None = None,
) -> AxesImage:
    """Draw a matrix as a heat map; NaN is gray."""
    colors = mpl.colormaps["cividis"].with_extremes(bad=ABSENT)
    lowest, highest = limits
    image = axes.imshow(
        matrix, cmap=colors, vmin=lowest, vmax=highest, interpolation="nearest", aspect="auto"
    )
    axes.set_xticks(*client_ticks(columns, column_names), rotation=60 if column_names else 0)
    axes.set_yticks(*client_ticks(rows, row_names))
    return image


def plot_sharing(run: Run, server_round: int | None = None, name: str | None = None) -> Figure:
    """Draw a coefficient or sharing matrix as a heat map: who learns from whom.

    By default the first matrix after the last round. The color scale ends at the largest weight
    between two clients. A client's weight for itself is often so large that the others could not be
    distinguished. Clients with similar labels are adjacent. Raises `ValueError` if the run has no
    such matrix or round.
    """
    names = sharing_matrices(run)
    if not names or (name and name not in names):
        what = f"matrix {name}" if name else "matrix of receivers and givers"
        raise ValueError(f"{run.path.name} has no {what}.")
    name = name or names[0]
    rounds = len(run.matrices[name])
    server_round = rounds if server_round is None else server_round
    if not 1 <= server_round <= rounds:
        raise ValueError(f"Round {server_round} is outside 1..{rounds}.")
    clients, ordered = client_order(run)
    matrix = run.matrices[name][server_round - 1].astype(float)[np.ix_(clients, clients)]
    figure, axes = new_figure(f"Giver{ordered}", f"Receiver{ordered}", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, 0.9 * FIGURE_WIDTH)
    between = matrix[~np.eye(len(clients), dtype=bool)]
    known = between[np.isfinite(between)]  # NaN is a client that had not joined
    lowest, highest = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    # If all weights are equal, as in FedMD, the color scale still needs two different ends.
    if highest - lowest < 1e-9:
        lowest, highest = 0.0, 2 * highest or 1.0
    own = run.client_names
    image = draw_matrix(axes, matrix, clients, clients, (lowest, highest), own, own)
    figure.colorbar(image, ax=axes, label="Weight of the giver", extend="max")
    title = f"{run_title(run)}\n{name} after round {server_round}"
    axes.set_title(title, fontsize="medium")
    return figure


def plot_clusters(run: Run) -> Figure:
    """Draw each client's cluster over rounds; gray where a client did not participate.

    Clients with similar labels are adjacent. Raises `ValueError` if the run has no clusters.
    """
    if "clusters" not in run.matrices:
        raise ValueError(f"{run.path.name} has no clusters.")
    clients, ordered = client_order(run)
    labels = follow_clusters(run.matrices["clusters"])[:, clients].T
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
    axes.set_yticks(*client_ticks(clients, run.client_names))
    axes.set_yticks(np.arange(number + 1) - 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", lw=1)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, ticks=range(-1, len(colors)), label="Cluster")
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(["absent", *map(str, range(len(colors)))])
    axes.set_title(run_title(run), fontsize="medium")
    return figure


def plot_partition(run: Run) -> Figure:
    """Draw the number of samples by client and class as a heat map.

    Raises `ConfigError` or `DataError` if the data of the run cannot be rebuilt on this machine.
    """
    counts = label_counts(run)
    figure, axes = new_figure("Client", "Class", grid=False)
    matrix = counts.to_numpy(dtype=float).T
    clients, classes = counts.index.to_numpy(), counts.columns.to_numpy()
    limits = (0, matrix.max())
    image = draw_matrix(axes, matrix, classes, clients, limits, column_names=run.client_names)
    figure.colorbar(image, ax=axes, label="Samples")
    axes.set_title(data_title(run), fontsize="medium")
    return figure


def plot_cross(crossed: Cross) -> Figure:
    """Draw cross-client accuracy next to each coefficient matrix.

    Rows are receivers and columns are givers in all panels. The left panel shows the accuracy of
    the giver's model on the receiver's test data. The other panels omit the diagonal: a client's
    weight for itself is often so large that the other weights could not be distinguished.
    """
    clients, ordered = client_order(crossed.run)
    count = 1 + len(crossed.coefficients)
    size = (FIGURE_WIDTH * max(1.0, 0.8 * count), 0.9 * FIGURE_WIDTH)
    figure = Figure(figsize=size, layout="constrained")
    left, *right = figure.subplots(1, count, squeeze=False)[0]
    bar: dict[str, Any] = {"location": "bottom", "shrink": 0.8}
    pick = np.ix_(clients, clients)
    image = draw_matrix(left, crossed.accuracies.T[pick], clients, clients)
    label = "Accuracy of the giver's model"
    figure.colorbar(image, ax=left, label=label, format=percent, **bar)
    for axes, (name, matrix) in zip(right, crossed.coefficients.items(), strict=True):
        shown = np.where(np.eye(len(clients), dtype=bool), np.nan, matrix[pick])
        # If all weights are 0, the color scale still needs two different ends.
        highest = float(np.nanmax(shown, initial=0)) or 1.0
        image = draw_matrix(axes, shown, clients, clients, (0, highest))
        figure.colorbar(image, ax=axes, label=f"Weight of the giver, {name}", **bar)
        known = crossed.known_correlations(name)
        mean = f"{known.mean():+.2f}, mean over receivers" if len(known) else "undefined"
        axes.set_title(f"Rank correlation {mean}", fontsize="medium")
    for axes in (left, *right):
        axes.set_xlabel(f"Giver{ordered}")
    left.set_ylabel(f"Receiver and its test data{ordered}")
    figure.suptitle(run_title(crossed.run), fontsize="medium")
    return figure
