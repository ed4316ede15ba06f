"""The clients along an axis: in which order, and how many are named."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage

from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.plots.partition import label_counts
from fedkd_flwr.runs import Run


def client_order(run: Run, order: Sequence[int] | None) -> tuple[NDArray[np.int64], str]:
    """Return the partition-ids in the order to draw them, and what to call it."""
    if order is not None:
        return np.asarray(order), ""
    try:
        counts = label_counts(run).to_numpy()
    except (ConfigError, DataError):
        return np.arange(run.config["num-clients"]), ""
    if len(counts) < 3:
        return np.arange(len(counts)), ""
    shares = counts / counts.sum(axis=1, keepdims=True)
    tree = linkage(shares, "average", optimal_ordering=True)
    return leaves_list(tree).astype(np.int64), ", ordered by labels"


def client_ticks(clients: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    """Name as many clients as there is room for."""
    step = -(-len(clients) // 25)
    places = list(range(0, len(clients), step))
    return places, [str(clients[place]) for place in places]
