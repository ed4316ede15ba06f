"""The figures of ``results/figures``."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.pages import read_table
from results.published import accuracy, compared
from results.tables import RESULTS

LINES = {
    "fedala": ("#D55E00", "o"),
    "perfed-ckt": ("#009E73", "s"),
    "kt-pfl": ("#0072B2", "^"),
    "sim-pfl": ("#CC79A7", "v"),
    "persfl": ("#E69F00", "D"),
    "local": ("#999999", "x"),
}
"""Colors and markers of the learning curve's methods."""

SPLIT_NAMES = {"groups": "two groups of classes", "dirichlet": "Dirichlet 0.1"}

PAPER_TABLES = {
    "fedkma": ("Table I", "Table II", "Table III"),
    "kt-pfl": ("Table 1", "Table 2"),
    "perfed-ckt": ("Table 1",),
    "persfl": ("Table 2", "Table 3"),
}
MADE = ("learning-curve", *PAPER_TABLES)


def learning_curve() -> Figure:
    """Draw what methods gain over the best `local` by training images, a panel for each split."""
    rows = read_table("learning-curve")
    rows = rows[(rows["moment"] == "best") & rows["gain"].notna()]
    panels = [(split, rows[rows["split"] == split]) for split in SPLIT_NAMES]
    figure = Figure(figsize=(2.6 + 4 * len(panels), 3.8), layout="constrained", facecolor="white")
    for axes, (split, own) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False).flat, panels, strict=True
    ):
        for place, (method, (color, marker)) in enumerate(LINES.items()):
            _draw_curve(axes, own[own["method"] == method], place, color, marker)
        sizes = sorted(own["images"].unique())
        axes.axhline(0, color="black", lw=0.9)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        axes.minorticks_off()
        axes.set_title(f"Fashion-MNIST, {SPLIT_NAMES[split]}", fontsize=11)
        axes.set_xlabel("training images of a client", fontsize=11)
        axes.grid(axis="y", color="#dddddd", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("gain over training alone, points", fontsize=11)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", frameon=False, fontsize=11)
    return figure


def _draw_curve(axes: Axes, rows: pd.DataFrame, place: int, color: str, marker: str) -> None:
    """Draw a method's gains with their intervals, a little apart from those of the others."""
    rows = rows.sort_values("images")
    name = rows["method"].iloc[0]
    label = "training alone again" if name == "local" else name
    ends = [rows["gain"] - rows["gain_low"], rows["gain_high"] - rows["gain"]]
    places = rows["images"] * 1.05 ** (place - 2)
    axes.errorbar(
        places, rows["gain"], ends, label=label, capsize=2, lw=1.5, color=color, marker=marker
    )


def paper_figure(paper: str) -> Figure:
    """Draw a paper's accuracies beside ours, a panel for each data of `PAPER_TABLES`."""
    rows = read_table("papers", RESULTS).dropna(subset="set")
    rows = rows[(rows["paper"] == paper) & rows["table"].isin(PAPER_TABLES[paper])]
    panels = list(rows.groupby(["table", "data"], sort=False))
    heights = [
        max(len(own) for _, own in panels[start : start + 2]) for start in range(0, len(panels), 2)
    ]
    size = (9, 1 + 0.6 * len(heights) + 0.22 * sum(heights))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(heights), 2, height_ratios=heights, squeeze=False)
    for axes, (names, own) in zip(grid.flat, panels, strict=False):
        _draw_paper(axes, own)
        axes.set_title(", ".join(map(str, names)), fontsize="medium", loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.supxlabel("Accuracy in percent", fontsize="medium")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _draw_paper(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a row for each method, the best on top: a dot for each run, and the paper's."""
    reached = []
    for name, label, after in rows[["set", "label", "round"]].itertuples(index=False):
        runs = compared(name).groups[label]
        reached.append([100 * accuracy(run, None if np.isnan(after) else after) for run in runs])
    order = np.argsort([np.mean(one) for one in reached], kind="stable")
    dots = [(value, place) for place, row in enumerate(order) for value in reached[row]]
    rows, places = rows.iloc[order], range(len(rows))
    x, y = zip(*dots, strict=True)
    axes.scatter(x, y, s=18, alpha=0.7, lw=0, label="ours, a dot a run")
    axes.scatter(rows["theirs"], places, s=34, marker="D", color="black", label="paper")
    axes.set_yticks(places, (rows["method"] + " " + rows["settings"].fillna("")).str.strip())
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def write_figure(name: str) -> Path:
    """Draw a figure of `MADE` and write it."""
    path, is_paper = RESULTS / "figures" / f"{name}.png", name in PAPER_TABLES
    figure = paper_figure(name) if is_paper else learning_curve()
    figure.savefig(path, dpi=100 if is_paper else 150)
    return path
