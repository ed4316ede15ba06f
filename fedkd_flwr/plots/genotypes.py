"""Draw the two cells of a DARTS genotype as graphs, from left to right."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from fedkd_flwr.analysis.client_models import client_genotypes
from fedkd_flwr.models.genotype import CELL_INPUTS, Genotype, Node
from fedkd_flwr.plots.axes import write_figures
from fedkd_flwr.runs import Run

_INPUTS = ("cell before last", "last cell")
_OUTPUT = "output"
_COLORS = ("#1b6ca8", "#c2571a", "#2e7d32", "#8e3a9d", "#9a7400", "#00798c", "#b3261e")
_OUTPUT_COLOR = "#444444"
_LANE_INCHES = 0.4
_COLUMN_INCHES = 1.25
_FONT_SIZE = 10
_DOWN_THEN_RIGHT = "angle,angleA=-90,angleB=180,rad=6"
_RIGHT_THEN_DOWN = "angle,angleA=0,angleB=90,rad=6"
_STRAIGHT = "arc3"

Place = tuple[int, int]
"""Column and lane."""


def genotype_figure(genotype: Genotype) -> Figure:
    """Draw the normal cell above the reduction cell.

    Filled boxes are states, white boxes are operations. A line has the color of the state in which
    it starts.
    """
    cells = {"Normal cell": genotype.normal, "Reduction cell": genotype.reduce}
    # One lane per edge, and four for the inputs, the output and the title.
    lanes = [sum(len(node) for node in cell) + 4 for cell in cells.values()]
    figure = Figure(
        figsize=(_COLUMN_INCHES * (2 * genotype.nodes + 4), _LANE_INCHES * sum(lanes)),
        layout="constrained",
    )
    panels = figure.subplots(len(cells), 1, height_ratios=lanes)
    for axes, (title, cell) in zip(panels, cells.items(), strict=True):
        axes.set_title(title)
        axes.axis("off")
        _draw_cell(axes, cell)
    return figure


def plot_genotype(run: Run, partition_id: int) -> Figure:
    """Draw the cells that a client's search found.

    Raises `RunDirectoryError` if the run has no architecture weights.
    """
    return genotype_figure(client_genotypes(run)[partition_id])


def draw_genotypes(run: Run, folder: Path | str, file_format: str = "png") -> list[Path]:
    """Draw every client's genotype into a folder, made if missing, and return the files.

    They are named ``client-N.png``; the format is one of
    `fedkd_flwr.plots.axes.FORMATS`. Raises `RunDirectoryError` if the run has no architecture
    weights, or the folder cannot be written.
    """
    named = ((f"client-{n}", genotype_figure(own)) for n, own in enumerate(client_genotypes(run)))
    return write_figures(named, folder, file_format)


def _draw_cell(axes: Axes, cell: tuple[Node, ...]) -> None:
    """Draw one cell as a staircase from the upper left to the lower right."""
    # Each edge has its own lane: a line goes down from its source to the lane, right to its
    # operation, and from there to its node. Later nodes have lower lanes, so no line crosses a box.
    places = [(0, 0), (1, 0)]
    end = (2 * len(cell) + 2, -sum(map(len, cell)) - 1)
    lane = 0
    for node, choices in enumerate(cell):
        column = 2 * node + 2
        # The node is level with the last of its operations.
        place = (column + 1, -lane - len(choices))
        for operation, source in choices:
            lane += 1
            box, color = (column, -lane), _state_color(source)
            _line(axes, places[source], box, color, _DOWN_THEN_RIGHT)
            _line(axes, box, place, color, _STRAIGHT if -lane == place[1] else _RIGHT_THEN_DOWN)
            _box(axes, box, operation.replace("_", " "), fill="white", border="#888888")
        places.append(place)
    for state, place in enumerate(places):
        color = _state_color(state)
        name = _INPUTS[state] if state < CELL_INPUTS else f"node {state - CELL_INPUTS}"
        if state >= CELL_INPUTS:
            _line(axes, place, end, color, _RIGHT_THEN_DOWN)
        _box(axes, place, name, fill=color, border=color, text="white")
    _box(axes, end, _OUTPUT, fill=_OUTPUT_COLOR, border=_OUTPUT_COLOR, text="white")
    axes.set_xlim(-0.7, end[0] + 0.7)
    axes.set_ylim(end[1] - 0.7, 0.7)


def _line(axes: Axes, start: Place, end: Place, color: str, bend: str) -> None:
    line = FancyArrowPatch(
        start, end, arrowstyle="-", connectionstyle=bend, color=color, lw=1.5, shrinkA=0, shrinkB=0
    )
    axes.add_patch(line)


def _box(axes: Axes, place: Place, name: str, fill: str, border: str, text: str = "black") -> None:
    box = {"boxstyle": "round,pad=0.3", "facecolor": fill, "edgecolor": border}
    axes.text(
        *place, name, fontsize=_FONT_SIZE, color=text, ha="center", va="center", bbox=box, zorder=3
    )


def _state_color(state: int) -> str:
    return _COLORS[state % len(_COLORS)]
