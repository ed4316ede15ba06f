"""What figures show, for Matplotlib (`fedkd_flwr.plots`) and for the report alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import linear_sum_assignment

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.partition import label_counts
from fedkd_flwr.analysis.styles import styled
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.runs import DamagedRunError, Run

WHOSE = {"accuracy": "clients that trained", "new_accuracy": "new clients"}
"""Compared columns of a comparison's results, and the clients they are about."""

# ---- Methods ---------------------------------------------------------------------------


def course_over_seeds(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the means over seeds of accuracy and bytes, by round.

    A seed that stopped early keeps its last values, so the last row is the mean over all seeds.

    Parameters
    ----------
    runs : sequence of Run
        Runs of one method with the same settings, one per seed.

    Returns
    -------
    DataFrame
        One row per evaluated round: ``accuracy``, ``deviation``, its standard deviation, 0 for one
        seed, and ``bytes``, exchanged so far, both ways.
    """
    courses = [_course(run) for run in runs]
    rounds = pd.concat(courses).index.unique()
    level = [
        course.reindex(course.index.union(rounds[rounds > course.index.max()]), method="ffill")
        for course in courses
    ]
    by_round = pd.concat(level).groupby("round")
    deviation = by_round["accuracy"].std().fillna(0)
    return by_round.mean().assign(deviation=deviation)


def _course(run: Run) -> pd.DataFrame:
    """Return the bytes exchanged so far and the mean accuracy, by evaluated round."""
    rounds = run.rounds.set_index("round").rename(columns={"accuracy_mean": "accuracy"})
    rounds["bytes"] = (rounds["bytes_up"] + rounds["bytes_down"]).cumsum()
    return rounds.loc[rounds["accuracy"].notna(), ["bytes", "accuracy"]].astype(float)


def gains_by_method(comparison: Comparison) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Return label, style and one row per client and seed of each method with a reference."""
    gains = dict(iter(comparison.clients.dropna(subset="gain").groupby("method")))
    return [
        (label, style, gains[label]) for label, _, style in styled(comparison) if label in gains
    ]


def over_seeds(comparison: Comparison, label: str, column: str) -> pd.DataFrame:
    """Return the results of a method's runs, one row per seed that has a value in a column."""
    results = comparison.results
    return results[(results["method"] == label) & results[column].notna()]


# ---- Clients ---------------------------------------------------------------------------


def client_order(run: Run, order: Sequence[int] | None) -> tuple[NDArray[np.int64], str]:
    """Return the partition-ids in drawing order, and a suffix for the axis label.

    Without `order`, clients with similar label distributions are next to each other.
    """
    if order is not None:
        return np.asarray(order), ""
    try:
        counts = label_counts(run).to_numpy()
    except (ConfigError, DataError, DamagedRunError):
        return np.arange(run.config["num-clients"]), ""
    if len(counts) < 3:
        return np.arange(len(counts)), ""
    shares = counts / counts.sum(axis=1, keepdims=True)
    tree = linkage(shares, "average", optimal_ordering=True)
    return leaves_list(tree).astype(np.int64), ", ordered by labels"


# ---- Who learns from whom --------------------------------------------------------------


def sharing_matrices(run: Run) -> list[str]:
    """Return the names of a run's matrices of shape (rounds, N, N): receiver, giver."""
    clients = run.config["num-clients"]
    square = [name for name, m in run.matrices.items() if m.shape[1:] == (clients, clients)]
    return square if clients > 1 else []


def sharing(
    run: Run, name: str, rounds: Sequence[int], order: Sequence[int] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64], str]:
    """Return a matrix of a run in some rounds, and the order of its clients; see `client_order`.

    The matrix has the shape (rounds, N, N): receiver, giver.
    """
    clients, ordered = client_order(run, order)
    matrices = run.matrices[name][np.asarray(rounds) - 1].astype(np.float64)
    return matrices[:, clients][:, :, clients], clients, ordered


def clusters_of(
    run: Run, order: Sequence[int] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Return each client's cluster by round, and the order of clients; see `client_order`.

    Labels have the shape (N, rounds), -1 where a client is absent; see `follow_clusters`.
    """
    clients, ordered = client_order(run, order)
    return follow_clusters(run.matrices["clusters"])[:, clients].T, clients, ordered


def follow_clusters(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber clusters so that a cluster keeps its number over rounds.

    k-means numbers its clusters arbitrarily in each round.

    Parameters
    ----------
    labels : ndarray
        Shape (rounds, N), -1 for absent clients.

    Returns
    -------
    ndarray
        Shape (rounds, N). As many clients as possible keep the cluster number of the last
        round in which they were present.
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
