"""What all figures share: colours, lines and markers, the blank figure, its legend and title."""

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.runs import Run

COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#882255", "#999933", "#332288", "#888888", "#000000",
)  # fmt: skip
"""The palette of Okabe and Ito, without its yellow, which white paper swallows; before its black
three of Tol's muted colours and grey."""

FAMILIES = (
    ("kt-pfl", "sim-pfl", "topk-pfl", "kt-pfl-params"),
    ("perfed-ckt", "ds-fl", "fd"),
    ("persfl", "persfl-gd"),
    ("fedmd", "feddf", "pfeddf"),
    ("fedavg", "fedavg-ft", "fedprox", "scaffold"),
    ("fedkma", "fednas", "spider", "pfedhn"),
    ("fedproto", "fedgh", "fedtgp"),
    ("fml", "fedkd", "fedper", "lg-fedavg"),
    ("hypcluster", "fesem", "fedamp", "fedfomo"),
    ("per-fedavg", "pfedme", "ditto"),
    ("local",),
)
"""Methods that share a colour, in the order of `COLORS`; within a family the lines differ.

So a method looks the same in every figure, whatever it is compared with.
"""

LETTERS_IN_A_LINE = 60
"""Of a label in a legend."""

LINE_HEIGHT = 0.21
"""Inches that a line of a legend takes."""

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
    """Say which run a figure is of: method, data and seed."""
    return f"{run.config['strategy']}, {data_title(run)}, seed {run.config['seed']}"


def data_title(run: Run) -> str:
    """Say which data a run is on: data set and split."""
    settings = defining_settings(run.config)
    return f"{settings['dataset']}, {settings['partition']}"


def comparison_title(comparison: Comparison) -> str:
    """Say which data a comparison is on, and for how many clients."""
    run = next(iter(comparison.groups.values()))[0]
    return f"{data_title(run)}, {run.config['num-clients']} clients"


def percent(value: float, position: int | None = None) -> str:
    """Return a fraction as a percentage, as a tick label of an axis or a color bar."""
    return f"{100 * value:.3g}%"


def in_percent(axis: Axis) -> None:
    """Label the fractions along an axis as percentages."""
    axis.set_major_formatter(FuncFormatter(percent))


def in_points(axis: Axis) -> None:
    """Write differences between parts of 1 along an axis in points, with their sign."""

    def points(value: float, position: int | None = None) -> str:
        rounded = round(100 * value, 6)
        return f"{rounded:+.3g}" if rounded else "0"

    axis.set_major_formatter(FuncFormatter(points))


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
    all_looks = [(colour, line) for line in range(len(LINES)) for colour in range(len(COLORS))]
    for label in sorted(strategies.keys() - taken.keys()):
        free = [look for look in all_looks if look not in taken.values()]
        colours = {colour for colour, _ in taken.values()}
        fresh = [look for look in free if look[0] not in colours]
        # Beyond all looks there are, one is used twice.
        taken[label] = (fresh or free or all_looks)[0]
    return {
        label: {
            "color": COLORS[colour],
            "ls": LINES[line],
            "marker": MARKERS[(colour + 3 * line) % len(MARKERS)],
        }
        for label, (colour, line) in taken.items()
    }


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend below the axes, where it hides nothing; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, LETTERS_IN_A_LINE, break_on_hyphens=False) for label in labels]
    widest = max(len(line) for label in labels for line in label.splitlines())
    most = max(1, min(4, 70 // (widest + 6)))
    rows = -(-len(labels) // most)
    columns = -(-len(labels) // rows)
    lines = rows * max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
