"""Growing runs: extend the state of a method when a continued run has more clients."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def padded(rows: NDArray[Any], size: int, value: float = 0) -> NDArray[Any]:
    """Extend an array over clients, (M, …), to N clients, whose entries are `value`."""
    widths = [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
    return np.pad(rows, widths, constant_values=value)


def with_means(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Extend rows of clients, (M, …), to size N: who joins has the mean of the others, if any."""
    if not len(rows) or len(rows) == size:
        return rows
    mean = rows.mean(axis=0, dtype=np.float64, keepdims=True).astype(rows.dtype)
    return np.concatenate([rows, np.repeat(mean, size - len(rows), axis=0)])


def with_equal_weights(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Extend weights (M, M) to N clients: who joins has 1/N, and rows sum to 1."""
    before = len(weights)
    grown = np.full((size, size), 1 / size)
    grown[:before, :before] = weights * (before / size)
    return grown
