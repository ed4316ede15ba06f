"""Who learns from whom: coefficient matrices as heat maps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.figures import gains_over, ordered_matrices, run_title, sharing_matrices
from fedkd_flwr.analysis.line_styles import COLORS
from fedkd_flwr.plots.axes import FIGURE_WIDTH, in_points, new_figure
from fedkd_flwr.plots.heat_maps import draw_matrix
from fedkd_flwr.runs import Run


def plot_sharing(
    run: Run,
    server_round: int | None = None,
    name: str | None = None,
    order: Sequence[int] | None = None,
) -> Figure:
    """Draw a coefficient or sharing matrix as a heat map: who learns from whom.

    Parameters
    ----------
    run : Run
        A run of a method with such a matrix.
    server_round : int, optional
        The round; the last one by default.
    name : str, optional
        Name of the matrix; the first one by default.
    order : sequence of int, optional
        Partition-ids from top to bottom; by default clients with similar labels are adjacent.

    Raises
    ------
    ValueError
        If the run has no such matrix or round.
    """
    matrix, clients, ordered, title = _shown(run, server_round, name, order)
    figure, axes = new_figure("", "", grid=False)
    figure.set_size_inches(FIGURE_WIDTH, 0.9 * FIGURE_WIDTH)
    image = _draw(axes, matrix, clients)
    figure.colorbar(image, ax=axes, label="Weight of the giver")
    axes.set_xlabel(f"Giver{ordered}")
    axes.set_ylabel(f"Receiver{ordered}")
    axes.set_title(title, fontsize="medium")
    return figure


def plot_help(
    run: Run,
    local: Run,
    server_round: int | None = None,
    name: str | None = None,
    order: Sequence[int] | None = None,
    against: str = REFERENCE,
) -> Figure:
    """Draw a coefficient matrix next to each client's gain over the reference.

    Parameters
    ----------
    run : Run
        A run of a method with a coefficient or sharing matrix.
    local : Run
        The run of `local`, or of another reference, on the same split.
    server_round, name, order
        As in `plot_sharing`.
    against : str
        Name of the reference.

    Raises
    ------
    ValueError
        If the run has no such matrix or round.
    """
    matrix, clients, ordered, title = _shown(run, server_round, name, order)
    figure = Figure(figsize=(1.35 * FIGURE_WIDTH, 0.85 * FIGURE_WIDTH), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.2, 1), sharey=True)
    # The weight of a client for itself is often so large that it would hide the others.
    np.fill_diagonal(matrix, np.nan)
    image = _draw(left, matrix, clients)
    # Below both panels: a color bar next to one of them would misalign their rows.
    figure.colorbar(
        image, ax=[left, right], location="bottom", shrink=0.6, label="Weight of the giver"
    )
    left.set_xlabel(f"Giver{ordered}")
    left.set_ylabel(f"Receiver{ordered}")
    gain = gains_over(local, run, clients)
    # Blue and orange are distinguishable with any kind of color blindness.
    colors = [COLORS[0] if value > 0 else COLORS[1] for value in gain]
    right.barh(range(len(gain)), gain, color=colors)
    # Symmetric limits, so that losses are on the left half.
    widest = 1.1 * float(gain.abs().max())
    if widest > 0:
        right.set_xlim(-widest, widest)
    right.xaxis.set_major_locator(MaxNLocator(4))
    right.axvline(0, color="black", lw=1)
    right.set_xlabel(f"Gain in accuracy\nover {against}, in points")
    in_points(right.xaxis)
    right.grid(axis="x", alpha=0.3)
    right.spines[["top", "right"]].set_visible(False)
    right.tick_params(labelleft=False)
    figure.suptitle(f"{title}, without the diagonal", fontsize="medium")
    return figure


def _shown(
    run: Run, server_round: int | None, name: str | None, order: Sequence[int] | None
) -> tuple[NDArray[np.float64], NDArray[np.int64], str, str]:
    """Return one round's matrix, the order of its clients, and a title; see `ordered_matrices`."""
    names = sharing_matrices(run)
    if not names or (name and name not in names):
        what = f"matrix {name}" if name else "matrix of receivers and givers"
        raise ValueError(f"{run.path.name} has no {what}.")
    name = name or names[0]
    rounds = len(run.matrices[name])
    server_round = rounds if server_round is None else server_round
    if not 1 <= server_round <= rounds:
        raise ValueError(f"Round {server_round} is outside 1..{rounds}.")
    (matrix,), clients, ordered = ordered_matrices(run, name, [server_round], order)
    title = f"{run_title(run)}: {name} after round {server_round}"
    return matrix, clients, ordered, title


def _draw(axes: Axes, matrix: NDArray[np.float64], clients: NDArray[np.int64]) -> AxesImage:
    lowest, highest = float(np.nanmin(matrix)), float(np.nanmax(matrix))
    # If all weights are equal, as in FedMD, the color scale still needs two different ends.
    if highest - lowest < 1e-9:
        lowest, highest = 0.0, 2 * highest
    return draw_matrix(axes, matrix, clients, clients, limits=(lowest, highest))
