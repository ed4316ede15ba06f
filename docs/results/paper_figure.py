"""The figure of a paper's page: the paper's accuracies beside ours, a dot a run.

    python docs/results/paper_figure.py PAGE

writes ``docs/results/PAGE/paper.png``. `PANELS` says which tables of the paper it shows.
"""

import sys
from pathlib import Path

import numpy as np
from columns import REFERENCE, results
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tables import paper_accuracy, paper_figures

HERE = Path(__file__).parent
PANELS = {
    "kt-pfl": (
        (
            "Table 1, Fashion-MNIST, Non-IID 1",
            ("kt-pfl/table-1", "kt-pfl/table-1-rivals"),
            "kt-pfl-table-1:1",
        ),
        (
            "Table 2, Fashion-MNIST, 20 clients",
            ("kt-pfl/table-2-20-clients",),
            "kt-pfl-table-2:3",
        ),
        (
            "Table 2, Fashion-MNIST, 100 clients",
            ("kt-pfl/table-2-100-clients",),
            "kt-pfl-table-2:4",
        ),
        ("Table 2, CIFAR-10, 20 clients", ("kt-pfl/cifar10-table-2",), "kt-pfl-table-2:5"),
    ),
}
"""Title, sets of runs and column of the paper's table, for each panel of a page's figure."""


def draw(page: str) -> Figure:
    """Return the figure of a page, one panel below the other."""
    panels = [(title, *_rows(names, column)) for title, names, column in PANELS[page]]
    heights = [len(ours) for _, ours, _ in panels]
    figure = Figure(figsize=(7, 0.9 * len(panels) + 0.24 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(panels), sharex=True, height_ratios=heights, squeeze=False)
    for axes, (title, ours, theirs) in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, ours, theirs)
        axes.set_title(title, fontsize="medium", loc="left")
    grid[-1, 0].set_xlabel("Accuracy in percent")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _rows(names: tuple[str, ...], column: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return accuracies by method, lowest mean first, and those of the paper.

    Runs without an accuracy in the paper are left out, but for those of `REFERENCE`.
    """
    ours: dict[str, list[float]] = {}
    theirs: dict[str, float] = {}
    for result in (result for name in names for result in results(name)):
        paper = paper_accuracy(paper_figures(column), result)
        if paper is not None:
            theirs[result.strategy] = paper
        if paper is not None or result.strategy == REFERENCE:
            ours.setdefault(result.strategy, []).append(100 * result.accuracy)
    return dict(sorted(ours.items(), key=lambda row: np.mean(row[1]))), theirs


def _draw_panel(axes: Axes, ours: dict[str, list[float]], theirs: dict[str, float]) -> None:
    methods = list(ours)
    seeds = [(value, row) for row, method in enumerate(methods) for value in ours[method]]
    axes.scatter(*zip(*seeds, strict=True), s=18, alpha=0.7, lw=0, label="ours, a dot a run")
    papers = [(theirs[method], row) for row, method in enumerate(methods) if method in theirs]
    axes.scatter(*zip(*papers, strict=True), s=34, marker="D", color="black", label="paper")
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main(page: str) -> None:
    """Write the figure of a page."""
    draw(page).savefig(HERE / page / "paper.png", dpi=100)


if __name__ == "__main__":
    main(sys.argv[1])
