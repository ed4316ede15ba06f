"""Order and tick labels of clients along an axis."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage

from fedkd_flwr.analysis.partition import label_counts
from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.runs import DamagedRunError, Run


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


def client_ticks(clients: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    """Return positions and labels of ticks, at most 25 of them."""
    step = -(-len(clients) // 25)
    places = list(range(0, len(clients), step))
    return places, [str(clients[place]) for place in places]
