"""The figures of ``results/figures``: a dot is a published run."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedkd_flwr.methods import METHODS
from results.pages import read_table
from results.published import accuracy, compared, gains
from results.tables import RESULTS

PANELS = {
    "Fashion-MNIST, two groups of classes": "benchmark-tuned/retuned-k-classes-grouped",
    "Fashion-MNIST, Dirichlet 0.1": "benchmark-tuned/retuned-dirichlet",
}
SHOWN = (
    "hypcluster", "fedkma", "fedala", "persfl", "perfed-ckt", "sim-pfl", "kt-pfl", "fedavg"
)  # fmt: skip
EXCHANGED = {"soft predictions": "#0072B2", "parameters": "#D55E00"}
"""Colors of the families of these methods."""

LIMITS = (-11.0, 8.0)
"""Points; a gain outside is drawn as a triangle at the edge, and the mean as a number."""

PAPER_TABLES = {
    "fedkma": ("Table I", "Table II", "Table III"),
    "kt-pfl": ("Table 1", "Table 2"),
    "perfed-ckt": ("Table 1",),
    "persfl": ("Table 2", "Table 3"),
}
MADE = ("gain-over-local", *PAPER_TABLES)


def gain_over_local() -> Figure:
    """Draw the gain of some methods by seed, a panel for each split."""
    figure = Figure(figsize=(8, 3.6), layout="constrained", facecolor="white")
    grid = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for axes, (title, name) in zip(grid, PANELS.items(), strict=True):
        for row, method in enumerate(SHOWN):
            _draw_gains(axes, row, name, method)
        _style_gains(axes)
        axes.set_title(title, fontsize=11)
    figure.supxlabel("Gain in mean accuracy over local training, in points", fontsize=11)
    handles = [
        grid[0].scatter([], [], color=color, s=28, label=f"clients exchange {what}")
        for what, color in EXCHANGED.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=11)
    return figure


def _draw_gains(axes: Axes, row: int, name: str, method: str) -> None:
    """Draw a dot for each seed, and the mean with its 95% interval."""
    low, color = LIMITS[0], EXCHANGED[METHODS[method].record.family]
    seeds = 100 * np.array(gains(compared(name), method))
    inside, outside = seeds[seeds >= low], seeds[seeds < low]
    axes.scatter(inside, [row] * len(inside), s=24, color=color, alpha=0.45, lw=0)
    edge = [low] * len(outside)
    axes.scatter(edge, [row] * len(edge), s=36, color=color, marker="<", clip_on=False)
    effect = compared(name).effects[method]
    if 100 * effect.low < low:
        label = f"mean {100 * effect.gain:.1f}".replace("-", "\N{MINUS SIGN}")
        axes.text(0.6, row, label, va="center", fontsize=10, color=color)
        return
    axes.plot([100 * effect.low, 100 * effect.high], [row] * 2, color="black", lw=1.4)
    axes.plot([100 * effect.gain] * 2, [row - 0.3, row + 0.3], color="black", lw=1.8)


def _style_gains(axes: Axes) -> None:
    axes.axvline(0, color="black", lw=0.9)
    axes.set_xlim(*LIMITS)
    axes.set_yticks(range(len(SHOWN)), SHOWN)
    axes.set_ylim(len(SHOWN) - 0.5, -0.5)
    axes.set_xticks([-10, -5, 0, 5], ["\N{MINUS SIGN}10", "\N{MINUS SIGN}5", "0", "+5"])
    axes.grid(axis="x", color="#dddddd", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11, length=0, pad=8)
    axes.spines[:].set_visible(False)


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


def write_figure(name: str, folder: Path = RESULTS / "figures") -> Path:
    """Draw a figure of `MADE` and write it."""
    path, is_paper = folder / f"{name}.png", name in PAPER_TABLES
    figure = paper_figure(name) if is_paper else gain_over_local()
    figure.savefig(path, dpi=100 if is_paper else 150)
    return path
