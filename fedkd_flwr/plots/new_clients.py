"""Accuracy of new clients next to the clients that took part in the training."""

from typing import Any

from matplotlib.figure import Figure

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import CLIENT_GROUPS, comparison_title, results_over_seeds
from fedkd_flwr.analysis.line_styles import line_styles
from fedkd_flwr.plots.axes import FIGURE_WIDTH, in_percent, legend_below, new_figure


def plot_new_clients(comparison: Comparison) -> Figure:
    """Plot the mean accuracy of new clients below that of the clients that trained, by method.

    A large marker is the mean over seeds, a small dot is a seed. The two groups are different
    clients with different test data. To see whether a method helps new clients, compare them with
    the dashed line: new clients under `local`, one line for each of its settings.

    Raises
    ------
    ValueError
        If no run has new clients.
    """
    if "new_accuracy" not in comparison.results:
        raise ValueError("No run has new clients.")
    figure, axes = new_figure("Mean accuracy over clients", "")
    figure.set_size_inches(FIGURE_WIDTH, 1.4 + 0.5 * len(comparison.groups))
    in_percent(axes.xaxis)
    title = f"{comparison_title(comparison)}\nOne dot per seed; the large marker is the mean"
    axes.set_title(title, fontsize="medium")
    marker_style: dict[str, Any] = {"marker": "o", "ms": 8, "ls": "none"}
    for name, color in zip(CLIENT_GROUPS.values(), ("black", "white"), strict=True):
        axes.plot([], [], color="black", mfc=color, label=name, **marker_style)
    for row, (label, runs, style) in enumerate(line_styles(comparison)):
        color = style["color"]
        for column, fill, shift in zip(CLIENT_GROUPS, (color, "white"), (-0.16, 0.16), strict=True):
            values = results_over_seeds(comparison, label, column)[column]
            if values.empty:
                continue
            level = [row + shift] * len(values)
            axes.plot(values, level, color=color, marker=".", ms=7, alpha=0.6)
            axes.plot(values.mean(), row + shift, color=color, mfc=fill, **marker_style)
        alone = results_over_seeds(comparison, label, "new_accuracy")["new_accuracy"]
        if runs[0].config["strategy"] == REFERENCE and len(alone):
            name = f"new clients of {label}"
            axes.axvline(alone.mean(), color=color, lw=1, ls="--", label=name)
    axes.set_yticks(range(len(comparison.groups)), list(comparison.groups))
    axes.set_ylim(len(comparison.groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes)
    return figure
