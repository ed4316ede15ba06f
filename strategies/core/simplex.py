"""Probability vectors: check them, and bring arrays back to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NotOnSimplexError(ValueError):
    """Rows that are not probability distributions; the message says why."""


def check_simplex(rows: NDArray[Any], name: str, tolerance: float = 1e-3) -> None:
    """Refuse rows that are not probability distributions.

    Parameters
    ----------
    rows : ndarray
        Shape (..., K), finite.
    name : str
        Name of the array in the error message.
    tolerance : float
        How far a row's sum may be from 1, and an entry below 0.

    Raises
    ------
    NotOnSimplexError
        If an entry is negative or a row does not sum to 1.
    """
    if rows.size and float(rows.min()) < -tolerance:
        raise NotOnSimplexError(f"{name} holds the negative number {rows.min():.3g}; {_WANTED}")
    row_sums = rows.sum(axis=-1, dtype=np.float64).ravel()
    if not row_sums.size:
        return
    worst = row_sums[np.abs(row_sums - 1).argmax()]
    if abs(worst - 1) > tolerance:
        raise NotOnSimplexError(f"{name} has a row that sums to {worst:.4g}, not 1; {_WANTED}")


_WANTED = "each row has to be a probability distribution, such as softmax(logits)"


def normalized_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Scale every row to sum 1; a row of zeros becomes uniform."""
    sums = rows.sum(axis=-1, keepdims=True)
    uniform = rows.dtype.type(1 / rows.shape[-1])
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), uniform)


def equal_weights(num_clients: int, new_clients: Sequence[int]) -> NDArray[np.float64]:
    """Weigh all clients in training alike; a new client weighs for itself alone.

    Parameters
    ----------
    num_clients : int
        N.
    new_clients : sequence of int
        Partition-ids of the clients that are not in training.

    Returns
    -------
    ndarray
        Shape (N, N), row = receiver, rows on the simplex.
    """
    weights = np.ones((num_clients, num_clients))
    weights[:, new_clients] = 0
    weights[new_clients, new_clients] = 1
    return weights / weights.sum(axis=1, keepdims=True)


def project_onto_simplex(rows: NDArray[Any], mass: NDArray[Any]) -> NDArray[Any]:
    """Project every row onto the vectors that are non-negative and sum to its mass.

    The Euclidean projection subtracts one threshold from a row and clips at zero; the
    threshold follows from the sorted row.

    Parameters
    ----------
    rows : ndarray
        Shape (R, M) float64.
    mass : ndarray
        Shape (R,), non-negative: what each projected row sums to.

    Returns
    -------
    ndarray
        Shape (R, M).
    """
    # In place: with many clients the rows are the largest array that a server holds.
    descending = np.sort(rows, axis=1)[:, ::-1]
    thresholds = np.cumsum(descending, axis=1)
    thresholds -= mass[:, None]
    thresholds /= np.arange(1, rows.shape[1] + 1)
    # The row's first entry is always above its threshold (mass > 0), so this is >= 1.
    support = np.maximum((descending > thresholds).sum(axis=1), 1)
    threshold = np.take_along_axis(thresholds, support[:, None] - 1, axis=1)
    return np.maximum(rows - threshold, 0.0)
