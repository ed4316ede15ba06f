"""Draw the two cells of a DARTS genotype as graphs, from left to right."""

from pathlib import Path

import networkx
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedkd_flwr.analysis.genotypes import client_genotypes
from fedkd_flwr.models.darts.derivation import Rule
from fedkd_flwr.models.darts.genotype import Genotype, Node
from fedkd_flwr.models.darts.settings import CELL_INPUTS
from fedkd_flwr.plots.files import write_figures
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

    Parameters
    ----------
    run : Run
        A run of ``fedkma``, ``fedkma-uniform`` or ``fednas`` with ``models = darts``.
    partition_id : int
        The client.

    Raises
    ------
    RunDirectoryError
        If the run has no architecture weights.
    """
    return genotype_figure(client_genotypes(run)[partition_id])


def draw_genotypes(
    run: Run, folder: Path | str, rule: Rule = "every-edge", file_format: str = "png"
) -> list[Path]:
    """Draw every client's genotype.

    Parameters
    ----------
    run : Run
        A run of ``fedkma``, ``fedkma-uniform`` or ``fednas`` with ``models = darts``.
    folder : Path or str
        Gets one figure per client, ``client-N.png``; created if missing.
    rule : {"every-edge", "two-edges"}
        Which edges are kept.
    file_format : str
        One of `fedkd_flwr.plots.files.FORMATS`.

    Returns
    -------
    list of Path
        The files, by partition-id.

    Raises
    ------
    RunDirectoryError
        If the run has no architecture weights, or the folder cannot be written.
    """
    genotypes = client_genotypes(run, rule)
    return write_figures(
        ((f"client-{n}", genotype_figure(genotype)) for n, genotype in enumerate(genotypes)),
        folder,
        file_format,
    )


def _draw_cell(axes: Axes, cell: tuple[Node, ...]) -> None:
    """Draw one cell as a staircase from the upper left to the lower right.

    Each edge has its own lane: a line goes down from its source to the lane, right to its
    operation, and from there to its node. Later nodes have lower lanes, so no line crosses a box.
    """
    states = [*_INPUTS, *(f"node {node}" for node in range(len(cell)))]
    graph = networkx.DiGraph()
    places = {_INPUTS[0]: (0, 0), _INPUTS[1]: (1, 0)}
    operations: dict[str, str] = {}
    lane = 0
    for state, choices in enumerate(cell, start=CELL_INPUTS):
        column = 2 * (state - CELL_INPUTS) + 2
        for operation, source in choices:
            lane += 1
            box = f"{states[source]} to {states[state]}"
            operations[box] = operation.replace("_", " ")
            places[box] = (column, -lane)
            color = _state_color(source)
            graph.add_edge(states[source], box, color=color, bend=_DOWN_THEN_RIGHT)
            graph.add_edge(box, states[state], color=color, bend=_RIGHT_THEN_DOWN)
        # The node is level with the last of its operations.
        places[states[state]] = (column + 1, -lane)
        graph.edges[box, states[state]]["bend"] = _STRAIGHT
        graph.add_edge(states[state], _OUTPUT, color=_state_color(state), bend=_RIGHT_THEN_DOWN)
    places[_OUTPUT] = (2 * len(cell) + 2, -lane - 1)

    axes.set_xlim(-0.7, places[_OUTPUT][0] + 0.7)
    axes.set_ylim(places[_OUTPUT][1] - 0.7, 0.7)
    for start, end, line in graph.edges(data=True):
        networkx.draw_networkx_edges(
            graph,
            places,
            [(start, end)],
            edge_color=line["color"],
            connectionstyle=line["bend"],
            arrowstyle="-",
            width=1.5,
            node_size=0,
            ax=axes,
        )
    _draw_boxes(axes, graph, places, operations, text="black", fill="white", border="#888888")
    for state, name in enumerate(states):
        color = _state_color(state)
        _draw_boxes(axes, graph, places, {name: name}, text="white", fill=color, border=color)
    labels = {_OUTPUT: _OUTPUT}
    color = _OUTPUT_COLOR
    _draw_boxes(axes, graph, places, labels, text="white", fill=color, border=color)


def _draw_boxes(
    axes: Axes,
    graph: networkx.DiGraph,
    places: dict[str, tuple[int, int]],
    labels: dict[str, str],
    text: str,
    fill: str,
    border: str,
) -> None:
    networkx.draw_networkx_labels(
        graph,
        places,
        labels,
        font_size=_FONT_SIZE,
        font_color=text,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": fill, "edgecolor": border},
        ax=axes,
    )


def _state_color(state: int) -> str:
    return _COLORS[state % len(_COLORS)]
