"""What a method gains against what it costs: bytes and gradient steps, and the Pareto front."""

import numpy as np
import pandas as pd
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import comparison_title, gains_with_cost, pareto_front
from fedkd_flwr.analysis.line_styles import line_styles
from fedkd_flwr.plots.axes import bytes_across, in_points, legend_below, new_figure

AREAS = (40.0, 260.0)
"""Smallest and largest area of a marker, in square points."""


def plot_gain_against_bytes(comparison: Comparison) -> Figure:
    """Plot each method's mean gain over the reference against the bytes of a run.

    Bars are 95% intervals over seeds. The area of a marker grows with the gradient steps of a
    client, if the runs have counted them. A dashed line joins the Pareto front: no other method
    gains as much with as few bytes.

    Raises
    ------
    ValueError
        If no method with a gain exchanges anything.
    """
    shown = gains_with_cost(comparison)
    if shown.empty:
        raise ValueError("No method of the comparison both has a gain and exchanges something.")
    reference = comparison.against
    figure, axes = new_figure(
        "Bytes of a run, both ways, all clients", f"Mean gain over {reference}, in points"
    )
    areas = _areas(shown)
    for label, _, style in line_styles(comparison):
        if label not in shown.index:
            continue
        row, color = shown.loc[label], style["color"]
        spread = [[row["gain"] - row["gain_low"]], [row["gain_high"] - row["gain"]]]
        if np.isfinite(spread).all():
            axes.errorbar(row["bytes"], row["gain"], yerr=spread, color=color, lw=1.2, zorder=2)
        axes.scatter(
            row["bytes"], row["gain"], s=areas[label], color=color, marker=style["marker"],
            edgecolor="white", lw=0.8, alpha=0.75, label=label, zorder=3 - areas[label] / 1000,
        )  # fmt: skip
    front = shown.loc[pareto_front(shown["bytes"], shown["gain"])]
    (line,) = axes.plot(front["bytes"], front["gain"], color="black", ls="--", lw=1, zorder=1)
    line.set_label("Pareto front")
    axes.axhline(0, color="black", lw=1, ls=":", label=reference)
    axes.set_title(_title(comparison, shown), fontsize="medium")
    bytes_across(axes)
    in_points(axes.yaxis)
    legend_below(figure, axes)
    # In a legend, all markers are equally large.
    for handle in figure.legends[0].legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([50.0])
    return figure


def _has_steps(table: pd.DataFrame) -> bool:
    """Return whether the runs of all rows have counted gradient steps."""
    return "gradient_steps" in table and bool(table["gradient_steps"].notna().all())


def _areas(table: pd.DataFrame) -> pd.Series:
    """Return the area of each row's marker, linear in its gradient steps."""
    if not _has_steps(table):
        return pd.Series(AREAS[0], index=table.index)
    steps = table["gradient_steps"]
    return pd.Series(np.interp(steps, [0, steps.max()], AREAS), index=table.index)


def _title(comparison: Comparison, table: pd.DataFrame) -> str:
    title = comparison_title(comparison)
    if not _has_steps(table):
        return title
    least, most = table["gradient_steps"].min(), table["gradient_steps"].max()
    return f"{title}\nLarger marker: more gradient steps of a client, {least:,.0f} to {most:,.0f}"
