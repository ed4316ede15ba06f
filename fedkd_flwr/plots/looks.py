"""What all figures share: colours, lines and markers, the blank figure, its legend and title."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.runs import Run

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, without its yellow, which white paper swallows."""

FAMILIES = (
    ("kt-pfl", "sim-pfl", "topk-pfl"),
    ("perfed-ckt",),
    ("persfl", "persfl-gd"),
    ("fedmd",),
    ("fedavg", "fedavg-ft"),
    ("fedkma", "fednas"),
    ("local",),
)
"""Methods that share a colour, in the order of `COLOURS`; within a family the lines differ.

So a method looks the same in every figure, whatever it is compared with.
"""

MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
ABSENT = "#DDDDDD"
"""Colour of clients without a cluster, and of cells without an edge."""

FIGURE_WIDTH = 6.4
"""Inches."""


def new_figure(xlabel: str, ylabel: str, grid: bool = True) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, labelled."""
    figure = Figure(figsize=(FIGURE_WIDTH, 0.7 * FIGURE_WIDTH), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if grid:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def run_title(run: Run) -> str:
    """Say which run a figure is of: method, split and seed."""
    settings = defining_settings(run.config)
    return f"{settings['strategy']}, {settings['partition']}, seed {settings['seed']}"


def styled(comparison: Comparison) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Return label, runs and look of each group; the look is the same in every figure."""
    count = len(comparison.groups)
    looks = _looks(comparison)
    return [
        (
            label,
            runs,
            {
                **looks[label],
                # Later lines are thinner, so that equal courses do not hide each other.
                "lw": 3.0 - 1.8 * i / count,
                "ms": 8.0 - 4.0 * i / count,
                # About one marker a tenth of the width.
                "markevery": 0.1,
            },
        )
        for i, (label, runs) in enumerate(comparison.groups.items())
    ]


def _looks(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return colour, line and marker by label: the method's own where it is not taken yet.

    A method that is there with several settings, or is in no family, gets a look that nobody
    has, of a colour that nobody has while there are some.
    """
    own = {
        strategy: (colour, line)
        for colour, family in enumerate(FAMILIES)
        for line, strategy in enumerate(family)
    }
    taken: dict[str, tuple[int, int]] = {}
    strategies = {label: runs[0].config["strategy"] for label, runs in comparison.groups.items()}
    for label in sorted(strategies):
        look = own.get(strategies[label])
        if look and look not in taken.values():
            taken[label] = look
    all_looks = [(colour, line) for line in range(len(LINES)) for colour in range(len(COLOURS))]
    for label in sorted(strategies.keys() - taken.keys()):
        free = [look for look in all_looks if look not in taken.values()]
        colours = {colour for colour, _ in taken.values()}
        fresh = [look for look in free if look[0] not in colours]
        # Beyond all looks there are, one is used twice.
        taken[label] = (fresh or free or all_looks)[0]
    return {
        label: {
            "color": COLOURS[colour],
            "ls": LINES[line],
            "marker": MARKERS[(colour + 3 * line) % len(MARKERS)],
        }
        for label, (colour, line) in taken.items()
    }


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend below the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    most = max(1, min(4, 70 // (max(map(len, labels)) + 6)))
    rows = -(-len(labels) // most)
    columns = -(-len(labels) // rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
