"""Matrices as heat maps: accuracy of clients by class, and samples by client and class."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from fedkd_flwr.analysis.evaluations import class_accuracies
from fedkd_flwr.analysis.figures import run_title
from fedkd_flwr.analysis.samples import label_counts
from fedkd_flwr.plots.axes import ABSENT, FIGURE_WIDTH, client_ticks, new_figure, percent
from fedkd_flwr.runs import Run


def draw_matrix(
    axes: Axes,
    matrix: NDArray[np.float64],
    rows: NDArray[Any],
    columns: NDArray[Any],
    limits: tuple[float, float] = (0, 1),
) -> AxesImage:
    """Draw a matrix as a heat map; NaN is gray.

    Parameters
    ----------
    axes : Axes
        The axes to draw on.
    matrix : ndarray
        Shape (rows, columns).
    rows, columns : ndarray
        Tick labels.
    limits : (float, float)
        The ends of the color scale; the default suits accuracies.
    """
    colors = mpl.colormaps["cividis"].with_extremes(bad=ABSENT)
    lowest, highest = limits
    image = axes.imshow(
        matrix, cmap=colors, vmin=lowest, vmax=highest, interpolation="nearest", aspect="auto"
    )
    axes.set_xticks(*client_ticks(columns))
    axes.set_yticks(*client_ticks(rows))
    return image


def plot_classes(run: Run) -> Figure:
    """Draw each client's accuracy by class after the last round.

    Classes that are not in a client's test split are gray.

    Parameters
    ----------
    run : Run
        A run with ``measures = classes``.

    Raises
    ------
    ValueError
        If the run has no accuracy by class.
    """
    accuracies = class_accuracies(run)
    if accuracies.empty:
        raise ValueError(f"{run.path.name} has no accuracy by class; run it with measures=classes.")
    figure, axes = new_figure("Class", "Client", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, 0.9 * FIGURE_WIDTH)
    image = draw_matrix(
        axes, accuracies.to_numpy(), accuracies.index.to_numpy(), accuracies.columns.to_numpy()
    )
    figure.colorbar(image, ax=axes, label="Accuracy on the client's test split", format=percent)
    axes.set_title(f"{run_title(run)}: accuracy by class", fontsize="medium")
    return figure


def plot_partition(run: Run) -> Figure:
    """Draw the number of samples by client and class as a heat map.

    Parameters
    ----------
    run : Run
        The run, finished or not.

    Raises
    ------
    ConfigError, DataError
        If the data of the run cannot be rebuilt on this machine.
    """
    counts = label_counts(run)
    figure, axes = new_figure("Client", "Class", grid=False)
    matrix = counts.to_numpy(dtype=float).T
    clients, classes = counts.index.to_numpy(), counts.columns.to_numpy()
    image = draw_matrix(axes, matrix, classes, clients, limits=(0, matrix.max()))
    figure.colorbar(image, ax=axes, label="Samples")
    axes.set_title(run_title(run), fontsize="medium")
    return figure
