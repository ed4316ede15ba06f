"""The figures of ``results/figures``: a dot is a published run."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedkd_flwr.analysis.significance import Effect
from fedkd_flwr.config.toml_files import load_toml
from fedkd_flwr.methods import METHODS
from results.papers import PAPERS, Beside, beside
from results.published import by_seed, compared, groups_of

FIGURES = Path(__file__).parent / "figures"
PANELS = {
    "Fashion-MNIST, two groups of classes": "benchmark-tuned/retuned-k-classes-grouped",
    "Fashion-MNIST, Dirichlet 0.1": "benchmark-tuned/retuned-dirichlet",
}
SHOWN = (
    "hypcluster", "fedkma", "fedala", "persfl", "perfed-ckt", "sim-pfl", "kt-pfl", "fedavg"
)  # fmt: skip
EXCHANGED = {"soft predictions": "#0072B2", "class means": "#009E73", "parameters": "#D55E00"}
"""Colors of the families of methods."""

LIMITS = (-11.0, 8.0)
"""Points; a gain outside is drawn as a triangle at the edge, and the mean as a number."""


# ---- Gains over local training -------------------------------------------------------------


def gain_over_local() -> Figure:
    """Draw the gain of some methods by seed, a panel for each split."""
    figure = Figure(figsize=(8, 3.6), layout="constrained", facecolor="white")
    grid = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for axes, (title, name) in zip(grid, PANELS.items(), strict=True):
        comparison = compared(name)
        local = by_seed(groups_of(comparison)["local"])
        gains = pd.DataFrame(
            {method: by_seed(groups_of(comparison)[method]) for method in SHOWN}
        ).sub(pd.Series(local), axis=0)
        _draw_gains(axes, 100 * gains, comparison.effects)
        axes.set_title(title, fontsize=11)
    figure.supxlabel("Gain in mean accuracy over local training, in points", fontsize=11)
    families = {METHODS[method].record.family for method in SHOWN}
    handles = [
        grid[0].scatter([], [], color=color, s=28, label=f"clients exchange {what}")
        for what, color in EXCHANGED.items()
        if what in families
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=11)
    return figure


def _draw_gains(axes: Axes, gains: pd.DataFrame, effects: dict[str, Effect]) -> None:
    """Draw a split: a dot for each seed, the mean with its 95% interval, a line at zero."""
    low, high = LIMITS
    for row, method in enumerate(map(str, gains)):
        color, effect, seeds = (
            EXCHANGED[METHODS[method].record.family],
            effects[method],
            gains[method],
        )
        inside = seeds[seeds.between(low, high)]
        outside = len(seeds) - len(inside)
        axes.scatter(inside, [row] * len(inside), s=24, color=color, alpha=0.45, lw=0)
        axes.scatter([low] * outside, [row] * outside, s=36, color=color, marker="<", clip_on=False)
        if 100 * effect.low < low:
            label = f"mean {100 * effect.gain:.1f}".replace("-", "\N{MINUS SIGN}")
            axes.text(0.6, row, label, va="center", fontsize=10, color=color)
            continue
        axes.plot([100 * effect.low, 100 * effect.high], [row] * 2, color="black", lw=1.4)
        axes.plot([100 * effect.gain] * 2, [row - 0.3, row + 0.3], color="black", lw=1.8)
    axes.axvline(0, color="black", lw=0.9)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(gains.columns)), gains.columns)
    axes.set_ylim(len(gains.columns) - 0.5, -0.5)
    axes.set_xticks([-10, -5, 0, 5], ["\N{MINUS SIGN}10", "\N{MINUS SIGN}5", "0", "+5"])
    axes.grid(axis="x", color="#dddddd", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11, length=0, pad=8)
    axes.spines[:].set_visible(False)


# ---- A paper beside our runs ---------------------------------------------------------------


def paper_figure(paper: str) -> Figure:
    """Draw a paper's accuracies beside ours, a panel for each data of the tables that it shows."""
    shown = load_toml(PAPERS / f"{paper}.toml", "paper file")["figure"]
    panels: dict[str, list[Beside]] = {}
    for row in beside(paper):
        if row.table in shown:
            panels.setdefault(f"{row.table}, {row.data}", []).append(row)
    pairs = [list(panels.values())[start : start + 2] for start in range(0, len(panels), 2)]
    heights = [max(map(len, pair)) for pair in pairs]
    figure = Figure(figsize=(9, 1 + 0.6 * len(pairs) + 0.22 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(pairs), 2, height_ratios=heights, squeeze=False)
    for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
        _draw_paper(axes, sorted(rows, key=lambda row: np.mean(row.accuracies)))
        axes.set_title(title, fontsize="medium", loc="left")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.supxlabel("Accuracy in percent", fontsize="medium")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _draw_paper(axes: Axes, rows: list[Beside]) -> None:
    seeds = [(value, place) for place, row in enumerate(rows) for value in row.accuracies]
    x, y = np.array(seeds).T
    axes.scatter(x, y, s=18, alpha=0.7, lw=0, label="ours, a dot a run")
    theirs = [(row.theirs, place) for place, row in enumerate(rows) if row.theirs is not None]
    x, y = np.array(theirs).T
    axes.scatter(x, y, s=34, marker="D", color="black", label="paper")
    names = [f"{row.method} {row.settings}".strip() for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


# ---- Writing -------------------------------------------------------------------------------

MADE: dict[str, Callable[[], Figure]] = {
    "gain-over-local": gain_over_local,
    **{
        file.stem: functools.partial(paper_figure, file.stem)
        for file in sorted(PAPERS.glob("*.toml"))
    },
}


def write_figure(name: str, folder: Path = FIGURES) -> Path:
    """Draw a figure of `MADE` and write it."""
    path = folder / f"{name}.png"
    MADE[name]().savefig(path, dpi=150 if name == "gain-over-local" else 100)
    return path
