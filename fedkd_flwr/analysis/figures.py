"""What figures show; `fedkd_flwr.plots` only draws it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist

from fedkd_flwr.analysis.client_models import label_counts
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError
from fedkd_flwr.custom_objects.importing import shown_data
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.runs import DamagedRunError, Run
from strategies.core.randomness import random_generator

COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#882255", "#999933", "#332288", "#888888", "#661100", "#9D48F2",
    "#117733", "#000000",
)  # fmt: skip
"""The color-blind safe palette of Okabe and Ito, without yellow, which is hard to see on white.
Before black it has three of Tol's muted colors, gray, Tol's dark brown and green, and a violet."""

SAME_LABELS = 0.1
"""Total variation distance below which label distributions differ by chance alone."""

MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
"""Markers and lines, by their names in Matplotlib."""

# ---- Methods ---------------------------------------------------------------------------


def line_styles(comparison: Comparison) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Return label, runs and line style of each group; a comparison's figures agree on them."""
    count = len(comparison.groups)
    return [
        (
            label,
            runs,
            {
                "color": COLORS[i % len(COLORS)],
                "ls": LINES[i // len(COLORS) % len(LINES)],
                "marker": MARKERS[i % len(MARKERS)],
                # Later lines are thinner, so that equal curves remain visible.
                "lw": 3.0 - 1.8 * i / count,
                "ms": 8.0 - 4.0 * i / count,
                # About ten markers per line.
                "markevery": 0.1,
            },
        )
        for i, (label, runs) in enumerate(comparison.groups.items())
    ]


def accuracy_curve(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the mean over seeds of accuracy, by round.

    Each row is the mean over all seeds. A seed that stopped early keeps its last values, and a
    round is left out if a seed that was still running was not evaluated in it. One row per round:
    ``accuracy``, and ``deviation``, its standard deviation, 0 for one seed.
    """
    curves = [_curve_of_run(run) for run in runs]
    rounds = pd.concat(curves).index.unique()
    level = [
        curve.reindex(curve.index.union(rounds[rounds > curve.index.max()]), method="ffill")
        for curve in curves
        if len(curve)
    ]
    by_round = pd.concat(level or curves).groupby("round")
    deviation = by_round["accuracy"].std().fillna(0)
    return by_round.mean().assign(deviation=deviation)[by_round.size() == len(level)]


def _curve_of_run(run: Run) -> pd.DataFrame:
    """Return the mean accuracy by evaluated round."""
    rounds = run.rounds.set_index("round").rename(columns={"accuracy_mean": "accuracy"})
    return rounds.loc[rounds["accuracy"].notna(), ["accuracy"]].astype(float)


def gains_by_method(comparison: Comparison) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Return label, style and gains of each method that has runs of the reference.

    Gains have one row per client and seed. ``jitter`` is a random shift from -1 to 1, by which
    points of equal clients are drawn apart.
    """
    gains = dict(iter(comparison.clients.dropna(subset="gain").groupby("method")))
    shown: list[tuple[str, dict[str, Any], pd.DataFrame]] = []
    for label, _, style in line_styles(comparison):
        if label in gains:
            own, generator = gains[label], random_generator(0, "figure", len(shown))
            shown.append((label, style, own.assign(jitter=generator.uniform(-1, 1, len(own)))))
    return shown


# ---- Titles ----------------------------------------------------------------------------


def data_title(run: Run) -> str:
    """Return a title with the data set and partition of a run."""
    settings = defining_settings(run.config)
    return f"{shown_data(settings['dataset'])}, {settings['partition']}"


def run_title(run: Run) -> str:
    """Return a title with the method, data and seed of a run."""
    return f"{run.config['strategy']}, {data_title(run)}, seed {run.config['seed']}"


def comparison_title(comparison: Comparison) -> str:
    """Return a title with the data and number of clients of a comparison."""
    run = next(iter(comparison.groups.values()))[0]
    return f"{data_title(run)}, {run.config['num-clients']} clients"


def gains_with_cost(comparison: Comparison) -> pd.DataFrame:
    """Return the rows of the table that have a gain and exchange something."""
    table = comparison.table
    if "gain" not in table:
        return table.iloc[:0]
    return table[table["gain"].notna() & (table["bytes"] > 0)]


def pareto_front(costs: pd.Series, gains: pd.Series) -> list[str]:
    """Return the labels for which nothing as cheap gains as much, the cheapest first.

    Labels that gain nothing are not on the front.
    """
    ordered = pd.DataFrame({"cost": costs, "gain": gains}).sort_values(
        ["cost", "gain"], ascending=[True, False]
    )
    best_before = ordered["gain"].cummax().shift(fill_value=0.0).clip(lower=0.0)
    return list(ordered.index[ordered["gain"] > best_before])


# ---- Clients ---------------------------------------------------------------------------


def client_order(run: Run) -> tuple[NDArray[np.int64], str]:
    """Return the partition-ids in drawing order, and a suffix for the axis label.

    Clients with similar label distributions are next to each other, where the data are here and
    these distributions differ.
    """
    try:
        counts = label_counts(run).to_numpy()
    except (ConfigError, DataError, DamagedRunError):
        return np.arange(run.config["num-clients"]), ""
    if len(counts) < 3:
        return np.arange(len(counts)), ""
    label_distributions = counts / counts.sum(axis=1, keepdims=True)
    if pdist(label_distributions, "cityblock").max() / 2 < SAME_LABELS:
        return np.arange(len(counts)), ""
    tree = linkage(label_distributions, "average", optimal_ordering=True)
    return leaves_list(tree).astype(np.int64), ", ordered by labels"


# ---- Who learns from whom --------------------------------------------------------------


def sharing_matrices(run: Run) -> list[str]:
    """Return the names of a run's matrices of shape (rounds, N, N): receiver, giver."""
    clients = run.config["num-clients"]
    square = [name for name, m in run.matrices.items() if m.shape[1:] == (clients, clients)]
    return square if clients > 1 else []


def cluster_colors(labels: NDArray[np.int64]) -> list[str]:
    """Return a color for each cluster; more clusters than colors share some."""
    return [COLORS[n % len(COLORS)] for n in range(max(int(labels.max()) + 1, 1))]


def follow_clusters(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber clusters so that a cluster keeps its number over rounds.

    k-means numbers its clusters arbitrarily in each round. Shape (rounds, N), -1 for absent
    clients. As many clients as possible keep the number of the last round in which they were
    present.
    """
    count = max(int(labels.max()) + 1, 0)
    followed = np.full_like(labels, -1)
    last_known = np.full(labels.shape[1], -1)
    for row, now in zip(followed, labels, strict=True):
        seen_again = (now >= 0) & (last_known >= 0)
        common = np.zeros((count, count))
        np.add.at(common, (now[seen_again], last_known[seen_again]), 1)
        _, number = linear_sum_assignment(common, maximize=True)
        row[now >= 0] = number[now[now >= 0]]
        last_known = np.where(now >= 0, row, last_known)
    return followed
