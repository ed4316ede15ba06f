"""The figure of a paper's page: the paper's accuracies beside ours, a dot a run.

    python docs/results/paper_figure.py PAGE

writes ``docs/results/PAGE/paper.png``. ``PAGE/paper.toml`` names the tables that it shows.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_tables import Part, Row, parts, rows

HERE = Path(__file__).parent


def panels(page: str) -> list[tuple[Part, list[Row]]]:
    """Return the parts that a page's figure shows, with their rows, lowest mean first."""
    every_part, shown = parts(page)
    return [
        (part, sorted(rows(part), key=lambda row: np.mean(row.accuracies)))
        for part in every_part
        if part.table in shown
    ]


def digest(shown: list[tuple[Part, list[Row]]]) -> str:
    """Return a hash of what is drawn; the PNG holds it, so that a test sees an outdated figure."""
    drawn = [
        (part.table, part.data, [(row.method, row.paper, row.accuracies) for row in own])
        for part, own in shown
    ]
    return hashlib.sha256(repr(drawn).encode()).hexdigest()


def draw(shown: list[tuple[Part, list[Row]]]) -> Figure:
    """Return the figure of a page, two panels side by side."""
    pairs = [shown[start : start + 2] for start in range(0, len(shown), 2)]
    heights = [max(len(own) for _, own in pair) for pair in pairs]
    figure = Figure(figsize=(9, 1 + 0.6 * len(pairs) + 0.22 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(pairs), 2, height_ratios=heights, squeeze=False)
    for axes, (part, own) in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, own)
        axes.set_title(f"{part.table}, {part.data}", fontsize="medium", loc="left")
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    figure.supxlabel("Accuracy in percent", fontsize="medium")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _draw_panel(axes: Axes, own: list[Row]) -> None:
    seeds = [(value, place) for place, row in enumerate(own) for value in row.accuracies]
    axes.scatter(*zip(*seeds, strict=True), s=18, alpha=0.7, lw=0, label="ours, a dot a run")
    papers = [(row.paper, place) for place, row in enumerate(own) if row.paper is not None]
    axes.scatter(*zip(*papers, strict=True), s=34, marker="D", color="black", label="paper")
    axes.set_yticks(range(len(own)), [row.method.replace("`", "") for row in own])
    axes.set_ylim(-0.6, len(own) - 0.4)
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main(page: str) -> None:
    """Write the figure of a page."""
    shown = panels(page)
    draw(shown).savefig(HERE / page / "paper.png", dpi=100, metadata={"Description": digest(shown)})


if __name__ == "__main__":
    main(sys.argv[1])
