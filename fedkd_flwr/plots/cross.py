"""Accuracy of every model on every client's test data, next to the coefficients."""

import numpy as np
from matplotlib.figure import Figure

from fedkd_flwr.analysis.cross import Cross
from fedkd_flwr.analysis.figures import client_order, run_title
from fedkd_flwr.plots.axes import FIGURE_WIDTH, percent
from fedkd_flwr.plots.heat_maps import draw_matrix


def plot_cross(crossed: Cross) -> Figure:
    """Draw cross-client accuracy next to each coefficient matrix.

    Rows are receivers and columns are givers in all panels. The left panel shows the accuracy of
    the giver's model on the receiver's test data. The other panels omit the diagonal: a client's
    weight for itself is often so large that the other weights could not be distinguished.
    """
    clients, ordered = client_order(crossed.run, None)
    count = 1 + len(crossed.coefficients)
    size = (FIGURE_WIDTH * max(1.0, 0.8 * count), 0.9 * FIGURE_WIDTH)
    figure = Figure(figsize=size, layout="constrained")
    left, *right = figure.subplots(1, count, squeeze=False)[0]
    pick = np.ix_(clients, clients)
    image = draw_matrix(left, crossed.accuracies.T[pick], clients, clients)
    figure.colorbar(
        image,
        ax=left,
        location="bottom",
        shrink=0.8,
        label="Accuracy of the giver's model",
        format=percent,
    )
    for axes, (name, matrix) in zip(right, crossed.coefficients.items(), strict=True):
        shown = matrix[pick].copy()
        np.fill_diagonal(shown, np.nan)
        # If all weights are 0, the color scale still needs two different ends.
        limits = (0.0, float(np.nanmax(shown)) or 1.0) if len(clients) > 1 else (0.0, 1.0)
        image = draw_matrix(axes, shown, clients, clients, limits)
        figure.colorbar(
            image, ax=axes, location="bottom", shrink=0.8, label=f"Weight of the giver, {name}"
        )
        known = crossed.known_correlations(name)
        mean = f"{known.mean():+.2f}, mean over receivers" if len(known) else "undefined"
        axes.set_title(f"Rank correlation {mean}", fontsize="medium")
    for axes in (left, *right):
        axes.set_xlabel(f"Giver{ordered}")
    left.set_ylabel(f"Receiver and its test data{ordered}")
    figure.suptitle(run_title(crossed.run), fontsize="medium")
    return figure
