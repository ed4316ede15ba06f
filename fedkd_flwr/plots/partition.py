"""Number of samples by client and class."""

from matplotlib.figure import Figure

from fedkd_flwr.analysis.partition import label_counts
from fedkd_flwr.plots.heat_maps import draw_matrix
from fedkd_flwr.plots.style import new_figure, run_title
from fedkd_flwr.runs import Run


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
