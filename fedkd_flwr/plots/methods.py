"""Figures that compare methods: accuracy, gain over the reference, cost, and all of them."""

import hashlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import (
    COLORS,
    accuracy_curve,
    comparison_title,
    gains_by_method,
    gains_with_cost,
    line_styles,
    pareto_front,
    run_title,
    sharing_matrices,
)
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.plots.axes import (
    FIGURE_WIDTH,
    bytes_across,
    in_points,
    legend_below,
    new_figure,
    percent,
    write_figures,
)
from fedkd_flwr.plots.heat_maps import plot_clusters, plot_partition, plot_sharing
from fedkd_flwr.runs import DamagedRunError, Run

GRAY = "#888888"
"""Color of methods off the Pareto front."""

MANY_POINTS = 500
"""Points of a method from which on a vector graphic holds them as an image."""

NAME_WIDTH = 28
"""Maximum line length of a method's name beside its row."""


def plot_accuracy_over_rounds(comparison: Comparison) -> Figure:
    """Plot mean accuracy over rounds.

    A band is one standard deviation over seeds on each side. With more methods the bands
    are paler.
    """
    figure, axes = new_figure("Round", "Mean accuracy over clients")
    axes.yaxis.set_major_formatter(percent)
    axes.set_title(comparison_title(comparison), fontsize="medium")
    alpha = min(0.14, 0.9 / len(comparison.groups))
    for label, runs, style in line_styles(comparison):
        curve = accuracy_curve(runs)
        mean, spread = curve["accuracy"], curve["deviation"]
        axes.plot(curve.index, mean, label=label, **style)
        if spread.any():
            axes.fill_between(
                curve.index, mean - spread, mean + spread, color=style["color"], alpha=alpha, lw=0
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, axes)
    return figure


def plot_run(run: Run) -> Figure:
    """Plot mean accuracy over rounds, with a band from the worst to the best client."""
    rows = run.rounds.dropna(subset="accuracy_mean")
    figure, axes = new_figure("Round", "Accuracy of clients")
    axes.yaxis.set_major_formatter(percent)
    axes.plot(rows["round"], rows["accuracy_mean"], color=COLORS[0], marker="o", label="mean")
    axes.fill_between(
        rows["round"], rows["accuracy_min"], rows["accuracy_max"],
        color=COLORS[0], alpha=0.14, lw=0, label="worst to best",
    )  # fmt: skip
    axes.set_title(run_title(run), fontsize="medium")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


def plot_mean_gain(comparison: Comparison) -> Figure:
    """Plot each method's mean gain over the reference: a dot per seed, and the 95% interval.

    Raises `ValueError` if there is no run of the reference with the seed of another run.
    """
    shown, against = _gains(comparison), comparison.against
    figure, axes = new_figure(f"Gain in mean accuracy over {against}, in points", "")
    for row, (label, style, own) in enumerate(shown):
        seeds = own.groupby("seed")["gain"].mean()
        axes.scatter(seeds, [row] * len(seeds), s=26, color=style["color"], alpha=0.8, lw=0)
        axes.plot([seeds.mean()] * 2, [row - 0.3, row + 0.3], color="black", lw=2)
        if (effect := comparison.effects.get(label)) and np.isfinite(effect.low + effect.high):
            axes.plot([effect.low, effect.high], [row] * 2, color="black", lw=1.2)
    _rows(figure, axes, [label for label, _, _ in shown])
    axes.set_title(f"{comparison_title(comparison)}\nOne dot per seed", fontsize="medium")
    return figure


def plot_gain_over_local(comparison: Comparison) -> Figure:
    """Plot each client's gain in accuracy over the reference, one point per client and seed.

    Raises `ValueError` if there is no run of the reference with the seed of another run.
    """
    shown, against = _gains(comparison), comparison.against
    figure, axes = new_figure(f"Gain in accuracy over {against}, in points", "")
    for row, (_, style, own) in enumerate(shown):
        gain = own["gain"].to_numpy()
        axes.scatter(
            gain, row + 0.22 * own["jitter"], s=22, color=style["color"], alpha=0.6, lw=0,
            rasterized=len(gain) > MANY_POINTS,
        )  # fmt: skip
        axes.plot([gain.mean()] * 2, [row - 0.34, row + 0.34], color="black", lw=2)
    shares = comparison.table["beats_local"]
    _rows(figure, axes, [f"{name}\n{shares[name]:.0%} above {against}" for name, _, _ in shown])
    title = f"{comparison_title(comparison)}\nOne dot per client and seed; the bar is the mean"
    axes.set_title(title, fontsize="medium")
    return figure


def plot_gain_against_bytes(comparison: Comparison) -> Figure:
    """Plot each method's mean gain over the reference against the bytes of a run.

    A line joins the Pareto front, whose methods are named: no other method gains as much with as
    few bytes. The other methods are gray. Raises `ValueError` if no method with a gain exchanges
    anything.
    """
    shown, reference = gains_with_cost(comparison), comparison.against
    if shown.empty:
        raise ValueError("No method of the comparison both has a gain and exchanges something.")
    figure, axes = new_figure(
        "Bytes of a run, both ways, all clients", f"Mean gain over {reference}, in points"
    )
    front = shown.loc[pareto_front(shown["bytes"], shown["gain"])]
    others = shown.drop(index=front.index)
    axes.scatter(others["bytes"], others["gain"], s=30, color=GRAY, lw=0)
    axes.plot(front["bytes"], front["gain"], color=COLORS[0], marker="o", ms=7, lw=1, ls="--")
    for label, row in front.iterrows():
        # Nothing is above and left of the front, so there is room for names.
        axes.annotate(
            textwrap.fill(str(label), NAME_WIDTH), (row["bytes"], row["gain"]),
            xytext=(-6, 6), textcoords="offset points", ha="right", fontsize="medium",
        )  # fmt: skip
    axes.axhline(0, color="black", lw=1, ls=":")
    axes.set_title(
        f"{comparison_title(comparison)}\nNamed: nothing as cheap gains as much", fontsize="medium"
    )
    bytes_across(axes)
    axes.margins(x=0.3, y=0.15)
    in_points(axes.yaxis)
    return figure


def _gains(comparison: Comparison) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Return the gains by method, at least one."""
    shown = gains_by_method(comparison)
    if not shown:
        raise ValueError(
            f"There is no run of {comparison.against} with the same seed to compare with."
        )
    return shown


def _rows(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    """Give each method a row, and draw a line where it gains nothing."""
    lines = [
        "\n".join(
            textwrap.fill(line, NAME_WIDTH, break_on_hyphens=False) for line in name.split("\n")
        )
        for name in names
    ]
    heights = sum(max(0.5, 0.17 * (1 + line.count("\n"))) for line in lines)
    figure.set_size_inches(FIGURE_WIDTH, 1.4 + heights)
    axes.set_yticks(range(len(names)), lines, fontsize="small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color="black", lw=1, ls=":")
    in_points(axes.xaxis)


LONGEST_STEM = 120
"""Maximum number of characters of a label in a file name."""


def save_figures(
    comparison: Comparison, folder: str | Path, file_format: str = "png"
) -> list[Path]:
    """Write a comparison's figures into a folder, made if missing, and return the files.

    The format is one of `fedkd_flwr.plots.axes.FORMATS`. Raises `ConfigError` if it is unknown, and
    `RunDirectoryError` if the folder cannot be made or written.
    """
    named = ((file_stem(name), figure) for name, figure in figures_of(comparison))
    return write_figures(named, folder, file_format)


def file_stem(label: str) -> str:
    """Return a label as a file name: ``kt-pfl (rho=0.1)`` → ``kt-pfl-rho-0.1``.

    A label that is too long is shortened and ends in a hash.
    """
    stem = re.sub(r"[^\w.-]+", "-", label).strip("-")
    if len(stem) <= LONGEST_STEM:
        return stem
    return f"{stem[:LONGEST_STEM]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def figures_of(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a comparison by name, such as ``accuracy over rounds``.

    Matrices, clusters and the partition are drawn for the first seed of each method. The partition
    is skipped if this machine does not have the data.
    """
    # Names of methods, settings and data sets are no formulas.
    with mpl.rc_context({"text.parse_math": False}):
        yield from _of_methods(comparison)
        for label, (run, *_) in comparison.groups.items():
            for matrix in sharing_matrices(run):
                yield f"{label} {matrix}", plot_sharing(run, name=matrix)
            if "clusters" in run.matrices:
                yield f"{label} clusters", plot_clusters(run)
        try:
            yield "partition", plot_partition(next(iter(comparison.groups.values()))[0])
        except (ConfigError, DataError, DamagedRunError):
            return


def _of_methods(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    if comparison.clients["gain"].notna().any():
        yield f"mean gain over {comparison.against}", plot_mean_gain(comparison)
        yield f"gain over {comparison.against}", plot_gain_over_local(comparison)
    if comparison.clients["accuracy"].notna().any():
        yield "accuracy over rounds", plot_accuracy_over_rounds(comparison)
    if not gains_with_cost(comparison).empty:
        yield "gain against bytes", plot_gain_against_bytes(comparison)
