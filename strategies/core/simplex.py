"""Probability vectors: check them, bring arrays back to them, mix them."""

from collections.abc import Callable, Sequence
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


def weighted_mean(weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
    """Mix the givers' soft predictions into one teacher a receiver, by their mean.

    Parameters
    ----------
    weights : ndarray
        Shape (N, M), rows on the simplex.
    predictions : ndarray
        Shape (M, P, K), soft predictions of the M givers.

    Returns
    -------
    ndarray
        Shape (N, P, K).
    """
    givers, samples, classes = predictions.shape
    mixed = weights.astype(predictions.dtype) @ predictions.reshape(givers, -1)
    return mixed.reshape(len(weights), samples, classes)


def weighted_median(weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
    """Mix the givers' soft predictions by the weighted median of every single probability.

    Givers that hold less than half of a receiver's weight cannot move an entry beyond those
    of the others, whatever they send. The rows are then scaled to sum 1.

    Parameters
    ----------
    weights : ndarray
        Shape (N, M), rows on the simplex.
    predictions : ndarray
        Shape (M, P, K).

    Returns
    -------
    ndarray
        Shape (N, P, K).
    """
    order = np.argsort(predictions, axis=0, kind="stable")
    ascending = np.take_along_axis(predictions, order, axis=0)
    return np.stack([_median_of(row, order, ascending) for row in weights])


def _median_of(row: NDArray[Any], order: NDArray[np.intp], ascending: NDArray[Any]) -> NDArray[Any]:
    below = np.cumsum(row[order], axis=0)
    # With the row's own total, rounding cannot leave an entry without a middle.
    lower = (below >= below[-1] / 2 - 1e-9).argmax(axis=0)
    upper = (below > below[-1] / 2 + 1e-9).argmax(axis=0)
    middle = (
        np.take_along_axis(ascending, lower[None], axis=0)[0]
        + np.take_along_axis(ascending, upper[None], axis=0)[0]
    ) / 2
    return normalized_rows(middle)


MIXINGS: dict[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]] = {
    "mean": weighted_mean,
    "median": weighted_median,
}
"""How predictions are mixed: (N, M) weights and (M, P, K) predictions to (N, P, K)."""
