"""Accuracy of each client by class."""

from matplotlib.figure import Figure

from fedkd_flwr.analysis.results import class_accuracies
from fedkd_flwr.plots.heat_maps import draw_matrix
from fedkd_flwr.plots.style import FIGURE_WIDTH, new_figure, percent, run_title
from fedkd_flwr.runs import Run


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
