"""Interactive figures of the report, in the colors of `fedkd_flwr.analysis.line_styles`.

Colors that depend on the light or dark theme are written as CSS variables of the page, such as
``var(--ink)``. The page inserts their values when it draws a figure.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly.graph_objects import Figure, Frame, Heatmap

from fedkd_flwr.analysis.columns import MISSING
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.figures import (
    CLIENT_GROUPS,
    accuracy_curve,
    client_order,
    cluster_colors,
    clusters_of,
    gains_by_method,
    gains_with_safeguard,
    ordered_matrices,
    results_over_seeds,
)
from fedkd_flwr.analysis.line_styles import line_styles
from fedkd_flwr.analysis.samples import label_counts
from fedkd_flwr.runs import Run

INK, QUIET, PAPER = "var(--ink)", "var(--quiet)", "var(--paper)"
GRID, ABSENT = "var(--grid)", "var(--absent)"
"""Colors of the theme: text, secondary text, page background, grid lines, and clients without a
cluster."""

CLEAR = "rgba(0,0,0,0)"
BLACK = "#000000"
"""Last color of the palette; invisible on a dark page."""

DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
SYMBOLS = {
    "o": "circle", "s": "square", "D": "diamond", "^": "triangle-up", "v": "triangle-down",
    "P": "cross", "X": "x",
}  # fmt: skip
"""Plotly's names of matplotlib's lines and markers."""

MOST_ROUNDS = 50
"""Maximum number of rounds whose matrices are on the page, to limit its size."""

LABEL_WIDTH = 48
"""Maximum line length of a label, in characters, so that it fits on a phone."""


def accuracy_figure(comparison: Comparison) -> Figure:
    """Return mean accuracy over rounds, with a band of one standard deviation over seeds."""
    figure = _new_figure("Round", "Mean accuracy over clients", height=420)
    for label, runs, style in line_styles(comparison):
        curve = accuracy_curve(runs)
        rounds = curve.index.to_numpy()
        mean, spread = curve["accuracy"].to_numpy(), curve["deviation"].to_numpy()
        color = _on_theme(style["color"])
        if spread.any():
            figure.add_scatter(
                x=np.concatenate([rounds, rounds[::-1]]),
                y=np.concatenate([mean + spread, (mean - spread)[::-1]]),
                fill="toself", fillcolor=color, opacity=0.16, mode="none", hoverinfo="skip",
                legendgroup=label, showlegend=False,
            )  # fmt: skip
        figure.add_scatter(
            x=rounds,
            y=mean,
            customdata=spread,
            mode="lines+markers",
            name=_wrapped(label),
            legendgroup=label,
            line={"color": color, "dash": DASHES[style["ls"]], "width": style["lw"]},
            marker={"symbol": SYMBOLS[style["marker"]], "size": style["ms"]},
            hovertemplate="round %{x}: %{y:.1%}" + (" ± %{customdata:.1%}" if spread.any() else ""),
        )
    figure.update_yaxes(tickformat=".3~%")
    _count_rounds(
        figure, max(len(run.rounds) for runs in comparison.groups.values() for run in runs)
    )
    return figure


def gain_figure(comparison: Comparison) -> Figure:
    """Return each client's gain in accuracy over the reference, a point per client and seed."""
    shown, against = gains_by_method(comparison), comparison.against
    title = f"Gain in accuracy over {against}, in points"
    figure = _new_figure(title, "", height=110 + 84 * len(shown))
    for row, (label, style, own) in enumerate(shown):
        figure.add_scatter(
            x=100 * own["gain"],
            y=row + 0.12 + 0.14 * own["jitter"],
            customdata=own[["partition_id", "seed", "accuracy", "local_accuracy"]],
            mode="markers",
            name=_wrapped(label),
            marker={"color": _on_theme(style["color"]), "size": 9, "opacity": 0.85},
            hovertemplate="client %{customdata[0]}, seed %{customdata[1]}: %{x:+.1f} points<br>"
            f"%{{customdata[2]:.1%}}, {against} %{{customdata[3]:.1%}}",
        )
        mean = 100 * own["gain"].mean()
        figure.add_shape(
            type="line", x0=mean, x1=mean, y0=row - 0.1, y1=row + 0.34,
            line={"color": INK, "width": 3},
        )  # fmt: skip
        share = comparison.table["beats_local"][label]
        _write_above(
            figure,
            row,
            f"{label}: {share:.0%} of clients above {against}, {mean:+.1f} points on average",
        )
    figure.add_vline(0, line={"color": INK, "width": 1, "dash": "dot"})
    return _with_rows(figure, len(shown))


def safeguard_figure(comparison: Comparison) -> Figure:
    """Return each client's gain over its private model, without (hollow) and with a safeguard."""
    shown = gains_with_safeguard(comparison)
    title = "Gain in accuracy over the private model, in points"
    figure = _new_figure(title, "", height=110 + 104 * len(shown))
    for row, (label, style, own) in enumerate(shown):
        color = _on_theme(style["color"])
        for name, whose, place, fill in (
            ("method", "alone", row, PAPER),
            ("safeguarded", "safeguarded", row + 0.28, color),
        ):
            gain = 100 * own[f"{name}_gain"]
            figure.add_scatter(
                x=gain,
                y=place + 0.1 * own["jitter"],
                customdata=own[["partition_id", "seed", "safeguard_weight"]],
                mode="markers",
                name=_wrapped(f"{label}, {whose}"),
                marker={"color": fill, "size": 7, "line": {"color": color, "width": 1}},
                hovertemplate="client %{customdata[0]}, seed %{customdata[1]}: %{x:+.1f} points<br>"
                "weight of method %{customdata[2]:.2f}",
            )
            figure.add_shape(
                type="line", x0=gain.mean(), x1=gain.mean(), y0=place - 0.12, y1=place + 0.12,
                line={"color": INK, "width": 3},
            )  # fmt: skip
        alone, safe = own["method_harmed"].mean(), own["safeguarded_harmed"].mean()
        _write_above(figure, row, f"{label}: shown worse {alone:.0%} alone, {safe:.1%} safeguarded")
    figure.add_vline(0, line={"color": INK, "width": 1, "dash": "dot"})
    return _with_rows(figure, len(shown))


def new_clients_figure(comparison: Comparison) -> Figure:
    """Return the mean accuracy of new clients below that of the clients that trained, by method.

    A small point is a seed, a large one is the mean over seeds. Points of new clients are hollow.
    """
    shown = line_styles(comparison)
    figure = _new_figure("Mean accuracy over clients", "", height=110 + 84 * len(shown))
    for row, (label, _, style) in enumerate(shown):
        color = _on_theme(style["color"])
        means = []
        for (column, whose), place, fill in zip(
            CLIENT_GROUPS.items(), (row, row + 0.24), (color, PAPER), strict=True
        ):
            own = results_over_seeds(comparison, label, column)
            mean = own[column].mean()
            means.append(f"{mean:.1%}" if len(own) else MISSING)
            figure.add_scatter(
                x=own[column],
                y=[place] * len(own),
                customdata=own["seed"],
                mode="lines+markers",
                line={"color": color, "width": 2},
                marker={"color": color, "size": 7},
                hovertemplate=f"{whose}, seed %{{customdata}}: %{{x:.1%}}<extra></extra>",
            )
            figure.add_scatter(
                x=[mean],
                y=[place],
                mode="markers",
                marker={"color": fill, "size": 13, "line": {"color": color, "width": 2}},
                hovertemplate=f"{whose}: %{{x:.1%}}<extra></extra>",
            )
        _write_above(figure, row, f"{label}: {means[0]}, new clients {means[1]}")
    figure.update_xaxes(tickformat=".3~%")
    return _with_rows(figure, len(shown))


def shown_rounds(count: int) -> list[int]:
    """Return the rounds to show: all, or `MOST_ROUNDS` that are evenly spaced."""
    spread = np.linspace(1, count, min(count, MOST_ROUNDS))
    return [int(number) for number in np.unique(spread.round())]


def sharing_figure(run: Run, name: str, rounds: Sequence[int]) -> Figure:
    """Return who learns from whom, one frame per round, all with the same color scale.

    The scale ends at the largest weight between two different clients. A client's weight for
    itself is often so large that the other weights could not be distinguished.

    Parameters
    ----------
    run : Run
        A run of a method with a coefficient or sharing matrix.
    name : str
        Name of the matrix, which has the shape (rounds, N, N): receiver, giver.
    rounds : sequence of int
        The rounds to include, counted from 1; the last one is shown first.
    """
    exact, clients, ordered = ordered_matrices(run, name, rounds)
    matrices, names = exact.astype(np.float32), _names(clients)
    between = matrices[:, ~np.eye(len(clients), dtype=bool)]
    figure = _new_figure(f"Giver{ordered}", f"Receiver{ordered}", height=560, grid=False)
    figure.add_heatmap(
        z=matrices[-1],
        x=names,
        y=names,
        zmin=0,
        # NaN is a client that had not joined.
        zmax=float(np.nanmax(between, initial=0)) or 1.0,
        colorscale="Cividis",
        colorbar=_color_bar("Weight of the giver"),
        hovertemplate="weight of client %{x} for client %{y}: %{z:.4f}<extra></extra>",
    )
    figure.frames = [
        Frame(name=f"round {number}", data=[Heatmap(z=matrix)])
        for number, matrix in zip(rounds, matrices, strict=True)
    ]
    figure.update_xaxes(type="category")
    return _with_clients_down(figure)


def clusters_figure(run: Run, rounds: Sequence[int]) -> Figure:
    """Return each client's cluster over all rounds; each frame highlights one of `rounds`.

    Parameters
    ----------
    run : Run
        A run of a method that clusters clients.
    rounds : sequence of int
        The rounds to highlight, counted from 1; the last one is highlighted first.
    """
    labels, clients, ordered = clusters_of(run)
    colors = cluster_colors(labels)
    count = len(colors)
    height = 200 + max(140, min(22 * len(clients), 600))
    figure = _new_figure("Round", f"Client{ordered}", height=height, grid=False)
    steps = [[edge / count, color] for i, color in enumerate(colors) for edge in (i, i + 1)]
    figure.add_heatmap(
        z=np.where(labels < 0, np.nan, labels),
        x=np.arange(1, labels.shape[1] + 1),
        y=_names(clients),
        zmin=-0.5,
        zmax=count - 0.5,
        colorscale=steps,
        colorbar={**_color_bar("Cluster"), "tickvals": list(range(count))},
        ygap=1,
        hovertemplate="client %{y}, round %{x}: cluster %{z}<extra></extra>",
    )
    marks = {number: _mark_around(number) for number in rounds}
    figure.frames = [
        Frame(name=f"round {number}", layout={"shapes": [mark]}) for number, mark in marks.items()
    ]
    figure.update_layout(shapes=[marks[rounds[-1]]], plot_bgcolor=ABSENT)
    _count_rounds(figure, labels.shape[1])
    return _with_clients_down(figure)


def split_figure(runs: Mapping[str, Run]) -> Figure:
    """Return the number of samples by client and class, one frame per run.

    Parameters
    ----------
    runs : mapping of str to Run
        One run per partition, by the name of its frame; the first one is shown first.

    Raises
    ------
    ConfigError, DataError
        If the data of the runs cannot be rebuilt on this machine.
    """
    frames = []
    for name, run in runs.items():
        counts = label_counts(run)
        clients, ordered = client_order(run, None)
        shown = counts.to_numpy()[clients].T
        frames.append(Frame(name=name, data=[Heatmap(z=shown, x=_names(clients))]))
    most = max(int(frame.data[0].z.max()) for frame in frames)
    figure = _new_figure(
        f"Client{ordered}", "Class", height=200 + max(160, min(24 * len(shown), 800)), grid=False
    )
    figure.add_heatmap(
        z=frames[0].data[0].z,
        x=frames[0].data[0].x,
        y=_names(counts.columns.to_numpy()),
        zmin=0,
        zmax=most,
        colorscale="Cividis",
        colorbar=_color_bar("Samples"),
        hovertemplate="client %{x}: %{z} of class %{y}<extra></extra>",
    )
    figure.frames = frames
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return figure


def _write_above(figure: Figure, row: int, text: str) -> None:
    """Write a label above a row, left-aligned, where it fits on a phone."""
    figure.add_annotation(
        text=_wrapped(text),
        x=0, xref="paper", xanchor="left", y=row - 0.16, yanchor="bottom", align="left",
        showarrow=False, bgcolor=PAPER,
    )  # fmt: skip


def _with_rows(figure: Figure, count: int) -> Figure:
    """Return the figure with `count` rows, the first on top, without a vertical axis."""
    figure.update_yaxes(visible=False, range=[count - 0.55, -0.75])
    figure.update_layout(showlegend=False)
    return figure


def _new_figure(xlabel: str, ylabel: str, height: int, grid: bool = True) -> Figure:
    """Return an empty figure with axis titles, in the colors of the theme."""
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True, "showgrid": grid}
    return Figure(
        layout={
            "template": "none",
            "height": height,
            "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "font": {"color": INK, "size": 13, "family": "system-ui, sans-serif"},
            "modebar": {"bgcolor": CLEAR, "color": QUIET, "activecolor": INK},
            "hoverlabel": {"bgcolor": PAPER, "font": {"color": INK}},
            "xaxis": {**axis, "title": {"text": xlabel, "standoff": 8}},
            "yaxis": {**axis, "title": {"text": ylabel, "standoff": 8}},
            "legend": {
                "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom",
                "x": 0, "xanchor": "left",
            },
        }
    )  # fmt: skip


def _count_rounds(figure: Figure, count: int) -> None:
    """Put about eight ticks on the horizontal axis, at whole rounds."""
    magnitude = 10 ** int(np.log10(max(count, 8) / 8))
    step = next(size for size in (1, 2, 5, 10) if size * magnitude * 8 >= count) * magnitude
    figure.update_xaxes(dtick=step)


def _with_clients_down(figure: Figure) -> Figure:
    """Return the figure with one labeled row per client, from top to bottom."""
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _color_bar(title: str) -> dict[str, Any]:
    """Return a color bar below the figure, which leaves the full width to it."""
    return {
        "title": {"text": title, "side": "bottom"},
        "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom",
        "thickness": 12, "len": 0.8, "outlinewidth": 0,
    }  # fmt: skip


def _mark_around(server_round: int) -> dict[str, Any]:
    return {
        "type": "rect", "x0": server_round - 0.5, "x1": server_round + 0.5,
        "yref": "paper", "y0": 0, "y1": 1, "line": {"color": INK, "width": 3},
    }  # fmt: skip


def _names(ids: NDArray[Any]) -> list[str]:
    return [str(number) for number in ids]


def _on_theme(color: str) -> str:
    return INK if color == BLACK else color


def _wrapped(text: str) -> str:
    return "<br>".join(textwrap.wrap(text, LABEL_WIDTH))
