"""Shared style of all figures: colors, lines, markers, legends, titles and tick labels."""

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import Run

COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#882255", "#999933", "#332288", "#888888", "#000000",
)  # fmt: skip
"""The color-blind safe palette of Okabe and Ito, without yellow, which is hard to see on white,
and with three of Tol's muted colors and gray before black."""

FAMILIES = (
    "kt-pfl", "perfed-ckt", "persfl", "fedmd", "fedavg", "fedkma",
    "fedproto", "fml", "hypcluster", "per-fedavg", "local",
)  # fmt: skip
"""Color families in the order of `COLORS`. Their members have one color and different lines.

A method therefore has the same style in every figure.
"""

LABEL_WIDTH = 60
"""Maximum line length of a label in a legend."""

LINE_HEIGHT = 0.21
"""Height of a line in a legend, in inches."""

MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
ABSENT = "#DDDDDD"
"""Color of clients without a cluster, and of cells without an edge."""

FIGURE_WIDTH = 6.4
"""Width of a figure, in inches."""


def new_figure(xlabel: str, ylabel: str, grid: bool = True) -> tuple[Figure, Axes]:
    """Return a figure with one set of labeled axes."""
    figure = Figure(figsize=(FIGURE_WIDTH, 0.7 * FIGURE_WIDTH), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if grid:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def run_title(run: Run) -> str:
    """Return a title with the method, data and seed of a run."""
    return f"{run.config['strategy']}, {data_title(run)}, seed {run.config['seed']}"


def data_title(run: Run) -> str:
    """Return a title with the data set and partition of a run."""
    settings = defining_settings(run.config)
    return f"{settings['dataset']}, {settings['partition']}"


def comparison_title(comparison: Comparison) -> str:
    """Return a title with the data and number of clients of a comparison."""
    run = next(iter(comparison.groups.values()))[0]
    return f"{data_title(run)}, {run.config['num-clients']} clients"


def percent(value: float, position: int | None = None) -> str:
    """Return a fraction as a percentage, as a tick label of an axis or a color bar."""
    return f"{100 * value:.3g}%"


def in_percent(axis: Axis) -> None:
    """Label the fractions along an axis as percentages."""
    axis.set_major_formatter(FuncFormatter(percent))


def in_points(axis: Axis) -> None:
    """Label differences of fractions along an axis in percentage points, with their sign."""

    def points(value: float, position: int | None = None) -> str:
        rounded = round(100 * value, 6)
        return f"{rounded:+.3g}" if rounded else "0"

    axis.set_major_formatter(FuncFormatter(points))


def styled(comparison: Comparison) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Return label, runs and line style of each group; styles are the same in every figure."""
    count = len(comparison.groups)
    styles = _styles(comparison)
    return [
        (
            label,
            runs,
            {
                **styles[label],
                # Later lines are thinner, so that equal curves remain visible.
                "lw": 3.0 - 1.8 * i / count,
                "ms": 8.0 - 4.0 * i / count,
                # About ten markers per line.
                "markevery": 0.1,
            },
        )
        for i, (label, runs) in enumerate(comparison.groups.items())
    ]


def family_styles() -> dict[str, tuple[int, int]]:
    """Return the positions of color and line of each built-in method in a color family."""
    lines = dict.fromkeys(FAMILIES, 0)
    styles = {}
    for name, method in METHODS.items():
        family = method.strategy.color_family
        if family in lines:
            styles[name] = FAMILIES.index(family), lines[family]
            lines[family] += 1
    return styles


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return color, line and marker by label: those of the method's family if still free.

    A method that is compared with several settings, or is in no family, gets an unused style, in
    an unused color as long as there is one.
    """
    own = family_styles()
    taken: dict[str, tuple[int, int]] = {}
    strategies = {label: runs[0].config["strategy"] for label, runs in comparison.groups.items()}
    for label in sorted(strategies):
        style = own.get(strategies[label])
        if style and style not in taken.values():
            taken[label] = style
    all_styles = [(color, line) for line in range(len(LINES)) for color in range(len(COLORS))]
    for label in sorted(strategies.keys() - taken.keys()):
        free = [style for style in all_styles if style not in taken.values()]
        colors = {color for color, _ in taken.values()}
        fresh = [style for style in free if style[0] not in colors]
        # If all styles are in use, one is used twice.
        taken[label] = (fresh or free or all_styles)[0]
    return {
        label: {
            "color": COLORS[color],
            "ls": LINES[line],
            "marker": MARKERS[(color + 3 * line) % len(MARKERS)],
        }
        for label, (color, line) in taken.items()
    }


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend below the axes; the figure grows by the height of the legend."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, LABEL_WIDTH, break_on_hyphens=False) for label in labels]
    widest = max(len(line) for label in labels for line in label.splitlines())
    most = max(1, min(4, 70 // (widest + 6)))
    rows = -(-len(labels) // most)
    columns = -(-len(labels) // rows)
    lines = rows * max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
