"""Draw the README's figure: gain over local training by split, method and seed.

    python docs/images/gain_over_local.py [OUTPUT.png]

Every dot is a published run of the sets in docs/results/ten_seeds.py.
"""

import hashlib
import sys
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedkd_flwr.analysis.significance import Effect
from fedkd_flwr.methods import METHODS

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "results"))

from ten_seeds import SETS, effects, gains  # noqa: E402 - found in docs/results

EXCHANGED = {"soft predictions": "#0072B2", "class means": "#009E73", "parameters": "#D55E00"}
"""Colors of the families of methods."""

LIMITS = (-13.0, 8.0)
"""Points; a gain outside is drawn as a triangle at the edge, and the mean as a number."""


def all_gains() -> dict[str, pd.DataFrame]:
    """Return the gains of each set: one row per method, one column per seed, in points."""
    return {name: gains(name) for name in SETS}


def digest(panels: dict[str, pd.DataFrame]) -> str:
    """Return a hash of what is drawn; the PNG holds it, so that a test sees an outdated figure."""
    text = "".join(f"{name}\n{table.round(4).to_csv()}" for name, table in panels.items())
    return hashlib.sha256(text.encode()).hexdigest()


def draw(panels: dict[str, pd.DataFrame]) -> Figure:
    """Draw a panel for each split."""
    rows = max(map(len, panels.values()))
    size = (8, 1.2 + 0.25 * rows)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True)
    for axes, (name, table) in zip(grid, panels.items(), strict=True):
        _draw_panel(axes, table, effects(name))
        axes.set_title(f"Fashion-MNIST, {SETS[name]}", fontsize=10)
    figure.supxlabel("Gain in mean accuracy over local training, in points", fontsize=10)
    handles = [
        grid[0].scatter([], [], color=color, s=24, label=f"clients exchange {what}")
        for what, color in EXCHANGED.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_panel(axes: Axes, table: pd.DataFrame, found: dict[str, Effect]) -> None:
    """Draw a split: a dot for each seed, the mean with its 95% interval, a line at zero."""
    low, high = LIMITS
    for row, (method, seeds) in enumerate(table.iterrows()):
        color, effect = EXCHANGED[METHODS[method].family], found[method]
        inside = seeds[seeds.between(low, high)]
        outside = len(seeds) - len(inside)
        axes.scatter(inside, [row] * len(inside), s=16, color=color, alpha=0.45, lw=0)
        axes.scatter([low] * outside, [row] * outside, s=30, color=color, marker="<", clip_on=False)
        if 100 * effect.low < low:
            label = f"mean {100 * effect.gain:.1f}".replace("-", "\N{MINUS SIGN}")
            axes.text(0.6, row, label, va="center", fontsize=8.5, color=color)
            continue
        axes.plot([100 * effect.low, 100 * effect.high], [row] * 2, color="black", lw=1.2)
        axes.plot([100 * effect.gain] * 2, [row - 0.3, row + 0.3], color="black", lw=1.6)
    axes.axvline(0, color="black", lw=0.9)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(table)), table.index)
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xticks([-10, -5, 0, 5], ["\N{MINUS SIGN}10", "\N{MINUS SIGN}5", "0", "+5"])
    axes.grid(axis="x", color="#dddddd", lw=0.7)
    axes.grid(axis="y", color="#eeeeee", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, length=0, which="both")
    axes.spines[:].set_visible(False)


def main(output: Path) -> None:
    """Write the figure."""
    panels = all_gains()
    draw(panels).savefig(output, dpi=200, metadata={"Description": digest(panels)})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "gain-over-local.png")
