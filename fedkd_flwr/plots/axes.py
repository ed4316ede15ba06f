"""What all figures share: axes, legends, tick labels, and the files they are written to."""

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from fedkd_flwr.analysis.columns import in_bytes
from fedkd_flwr.config import ConfigError
from fedkd_flwr.files import plain_name, replacing
from fedkd_flwr.runs import absolute, writing

LABEL_WIDTH = 52
"""Maximum line length of a label in a legend."""

LINE_HEIGHT = 0.21
"""Height of a line in a legend, in inches."""

ABSENT = "#DDDDDD"
"""Color of clients without a cluster, and of cells without an edge."""

FIGURE_WIDTH = 5.6
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


LONGEST_TICK = 12
"""Maximum number of characters of a client's name at a tick."""


def percent(value: float, position: float | None = None) -> str:
    """Return a fraction as a percentage, as a tick label of an axis or a color bar."""
    return f"{100 * value:.3g}%"


def in_points(axis: Axis) -> None:
    """Label differences of fractions along an axis in percentage points, with their sign."""

    def points(value: float, position: float | None = None) -> str:
        rounded = round(100 * value, 6)
        return f"{rounded:+.3g}" if rounded else "0"

    axis.set_major_formatter(points)


def bytes_across(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, and label it in bytes, kB and so on."""
    axes.set_xscale("log")
    axis = axes.xaxis
    axis.set_major_locator(LogLocator(numticks=8))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda size, position: in_bytes(size))


def client_ticks(
    clients: NDArray[np.int64], names: Mapping[int, str] | None = None
) -> tuple[list[int], list[str]]:
    """Return positions and labels of ticks, at most 15 of them."""
    step = -(-len(clients) // 15)
    places = list(range(0, len(clients), step))
    known = names or {}
    return places, [str(known.get(clients[n], clients[n]))[:LONGEST_TICK] for n in places]


def legend_below(figure: Figure, axes: Axes) -> None:
    """Put the legend below the axes; the figure grows by the height of the legend."""
    handles, labels = axes.get_legend_handles_labels()
    labels = [textwrap.fill(label, LABEL_WIDTH, break_on_hyphens=False) for label in labels]
    widest = max(len(line) for label in labels for line in label.splitlines())
    most = max(1, min(4, 60 // (widest + 6)))
    rows = -(-len(labels) // most)
    columns = -(-len(labels) // rows)
    lines = rows * max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * lines)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


FORMATS = ("png", "svg", "pdf")
"""File formats of figures: ``png`` has pixels, ``svg`` and ``pdf`` are vector graphics."""


def write_figures(
    figures: Iterable[tuple[str, Figure]], folder: str | Path, file_format: str = "png"
) -> list[Path]:
    """Write figures one by one, as the iterable yields them.

    Raises `ConfigError` if the format is unknown; `RunDirectoryError` if the folder cannot be
    created or written.
    """
    if file_format not in FORMATS:
        raise ConfigError(
            f"Unknown figure format {file_format}; choose one of {', '.join(FORMATS)}."
        )
    directory, paths = absolute(folder), []
    what = f"The folder of figures {directory}"
    with writing(what):
        directory.mkdir(parents=True, exist_ok=True)
    for name, figure in figures:
        paths.append(directory / f"{plain_name(name)}.{file_format}")
        with writing(what), replacing(paths[-1]) as temporary:
            figure.savefig(temporary, format=file_format, dpi=150)
    return paths
