"""Clients that came after the training, beside those that took part."""

from typing import Any

from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.references import REFERENCE
from fedkd_flwr.plots.style import (
    FIGURE_WIDTH,
    comparison_title,
    in_percent,
    legend_below,
    new_figure,
    styled,
)

COLUMNS = {"accuracy": "clients that trained", "new_accuracy": "new clients"}
"""Columns of a comparison's results that are held against each other, and whose they are."""


def plot_new_clients(comparison: Comparison) -> Figure:
    """Plot the mean accuracy of new clients below that of the clients that trained, by method.

    A mark is the mean over seeds, the dots on its line are the seeds. The two are of different
    clients, with test data of their own: whether a method helps new clients is seen from the
    dashed line, the new clients of `local`, one line for each of its settings.

    Raises
    ------
    ValueError
        If no run has new clients.
    """
    results = comparison.results
    if "new_accuracy" not in results:
        raise ValueError("No run has new clients.")
    figure, axes = new_figure("Mean accuracy over clients", "")
    figure.set_size_inches(FIGURE_WIDTH, 1.4 + 0.5 * len(comparison.groups))
    in_percent(axes.xaxis)
    title = f"{comparison_title(comparison)}\nA dot a seed, a mark at the mean"
    axes.set_title(title, fontsize="medium")
    looks: dict[str, Any] = {"marker": "o", "ms": 8, "ls": "none"}
    for name, colour in zip(COLUMNS.values(), ("black", "white"), strict=True):
        axes.plot([], [], color="black", mfc=colour, label=name, **looks)
    for row, (label, runs, style) in enumerate(styled(comparison)):
        colour = style["color"]
        seeds = results[results["method"] == label]
        for column, fill, shift in zip(COLUMNS, (colour, "white"), (-0.16, 0.16), strict=True):
            values = seeds[column].dropna()
            if values.empty:
                continue
            level = [row + shift] * len(values)
            axes.plot(values, level, color=colour, marker=".", ms=7, alpha=0.6)
            axes.plot(values.mean(), row + shift, color=colour, mfc=fill, **looks)
        alone = seeds["new_accuracy"].dropna()
        if runs[0].config["strategy"] == REFERENCE and len(alone):
            name = f"new clients of {label}"
            axes.axvline(alone.mean(), color=colour, lw=1, ls="--", label=name)
    axes.set_yticks(range(len(comparison.groups)), list(comparison.groups))
    axes.set_ylim(len(comparison.groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes)
    return figure
