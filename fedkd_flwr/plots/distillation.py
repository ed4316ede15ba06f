"""PersFL: teacher rounds, and accuracy by lambda and T (Divi et al. 2021)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedkd_flwr.analysis.figures import run_title
from fedkd_flwr.analysis.line_styles import COLORS, LINES, MARKERS
from fedkd_flwr.analysis.persfl import mean_by_pair, teacher_rounds, tried_pairs
from fedkd_flwr.plots.axes import FIGURE_WIDTH, in_percent, new_figure, percent
from fedkd_flwr.runs import Run

PANELS_PER_ROW = 5
"""Maximum number of panels in a row of `plot_pairs`."""


def plot_pairs(runs: Run | Sequence[Run]) -> Figure:
    """Draw test accuracy over lambda for each T, one panel per client (Figs. 3 to 8).

    Parameters
    ----------
    runs : Run or sequence of Run
        Finished runs of ``persfl`` or ``persfl-gd`` that differ only in their seed. Their mean
        is drawn.

    Raises
    ------
    ValueError
        If a run has no table of pairs.
    """
    runs = _as_list(runs)
    by_client = list(tried_pairs(runs).groupby("partition_id"))
    columns = min(PANELS_PER_ROW, len(by_client))
    rows = -(-len(by_client) // columns)
    figure = Figure(figsize=(1.6 * FIGURE_WIDTH, 1.2 + 1.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, (client, pairs) in zip(panels, by_client, strict=False):
        _draw_lines(axes, mean_by_pair(pairs, "accuracy"))
        axes.set_title(f"Client {client}", fontsize="small")
    for axes in panels[len(by_client) :]:
        axes.set_visible(False)
    for axes in panels[len(by_client) - columns : len(by_client)]:
        axes.set_xlabel("Lambda")
        axes.tick_params(labelbottom=True)
    figure.supylabel("Accuracy on test data", fontsize="medium")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(_title(runs), fontsize="medium")
    return figure


def plot_surface(runs: Run | Sequence[Run]) -> Figure:
    """Draw mean accuracy over clients by lambda and T, on validation and on test data.

    Clients select by validation accuracy (left panel). The right panel shows test accuracy.

    Parameters
    ----------
    runs : Run or sequence of Run
        Finished runs of ``persfl`` or ``persfl-gd`` that differ only in their seed. Their mean
        is drawn.

    Raises
    ------
    ValueError
        If a run has no table of pairs.
    """
    runs = _as_list(runs)
    pairs = tried_pairs(runs)
    parts = {
        "Validation data": mean_by_pair(pairs, "validation_accuracy"),
        "Test data": mean_by_pair(pairs, "accuracy"),
    }
    figure = Figure(figsize=(FIGURE_WIDTH, 0.6 * FIGURE_WIDTH), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    values = np.concatenate([part.to_numpy() for part in parts.values()])
    lowest, highest = float(np.nanmin(values)), float(np.nanmax(values))
    for axes, (title, part) in zip(panels, parts.items(), strict=True):
        image = axes.imshow(part, cmap="cividis", vmin=lowest, vmax=highest, aspect="auto")
        for (row, column), value in np.ndenumerate(part.to_numpy()):
            # Dark text on the light half of the color scale, light text on the dark half.
            color = "black" if value > (lowest + highest) / 2 else "white"
            text = f"{100 * value:.1f}" if np.isfinite(value) else ""
            axes.text(column, row, text, ha="center", va="center", color=color, size="small")
        axes.set_xticks(range(len(part.columns)), [f"{name:g}" for name in part.columns])
        axes.set_yticks(range(len(part.index)), [f"{name:g}" for name in part.index])
        axes.set_xlabel("T")
        axes.set_title(title, fontsize="medium")
    panels[0].set_ylabel("Lambda")
    figure.colorbar(image, ax=list(panels), label="Accuracy", format=percent)
    figure.suptitle(_title(runs), fontsize="medium")
    return figure


def plot_teacher_rounds(runs: Run | Sequence[Run]) -> Figure:
    """Draw a histogram of the rounds from which the clients' teachers are (Fig. 2).

    Parameters
    ----------
    runs : Run or sequence of Run
        Finished runs of ``persfl`` or ``persfl-gd`` that differ only in their seed.

    Raises
    ------
    ValueError
        If a run has no teachers.
    """
    runs = _as_list(runs)
    rounds = teacher_rounds(runs)
    last = int(runs[0].config["num-server-rounds"])
    figure, axes = new_figure("Round of the teacher", "Clients")
    # At most about 25 bars, each covering the same whole number of rounds.
    width = -(-(last + 1) // 25)
    # Counted from the end: most teachers are from the last rounds, which get a full bar.
    edges = np.arange(last + 0.5, -0.5 - width, -width)[::-1].tolist()
    axes.hist(rounds, edges, color=COLORS[0], ec="white")
    mean = float(rounds.mean())
    axes.axvline(mean, color=COLORS[1], ls="--", label=f"mean {mean:.0f}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(edges[0], edges[-1])
    axes.legend(frameon=False)
    axes.set_title(_title(runs), fontsize="medium")
    return figure


def _draw_lines(axes: Axes, means: pd.DataFrame) -> None:
    """Draw one client's accuracy over lambda, one line per temperature."""
    for position, (temperature, values) in enumerate(means.items()):
        axes.plot(
            means.index,
            values,
            color=COLORS[position % len(COLORS)],
            ls=LINES[position % len(LINES)],
            marker=MARKERS[position % len(MARKERS)],
            ms=4,
            label=f"T = {temperature:g}",
        )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize="small")
    in_percent(axes.yaxis)


def _as_list(runs: Run | Sequence[Run]) -> Sequence[Run]:
    return [runs] if isinstance(runs, Run) else runs


def _title(runs: Sequence[Run]) -> str:
    return (
        run_title(runs[0]) if len(runs) == 1 else f"{run_title(runs[0])} and {len(runs) - 1} more"
    )
