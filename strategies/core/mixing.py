"""Mixtures of arrays: weighted means, medians and trimmed means, entry by entry.

A median or a trimmed mean protects against a minority of wrong arrays (Yin et al.,
*Byzantine-Robust Distributed Learning*, ICML 2018, arXiv:1803.01498). Here each receiver has its
own weights.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRIMMED = 0.25
"""Share of the weight that a trimmed mean leaves out at each end of an entry's values."""

STRETCH = 2**16
"""Number of entries that are sorted at once."""

Mix = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Mixes arrays of M givers for N receivers: weights (N, M) and values (M, ...) to (N, ...)."""


def weighted_mean(weights: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Mix by the weighted mean: weights (N, M) on the simplex, values (M, …) to (N, …)."""
    mixed = weights.astype(values.dtype) @ values.reshape(len(values), -1)
    return mixed.reshape(len(weights), *values.shape[1:])


def weighted_median(weights: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Mix by the weighted median of every entry: (N, M) and (M, …) to (N, …).

    Givers with less than half of a receiver's weight cannot move an entry beyond those of the
    others.
    """
    return _by_entry(_median, weights, values)


def trimmed_mean(weights: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Mix by the mean without the lowest and highest quarter of the weight, entry by entry.

    Weights (N, M) and values (M, …) to (N, …). Givers that hold at most a quarter of a receiver's
    weight cannot move an entry beyond those of the others.
    """
    return _by_entry(_trimmed_mean, weights, values)


MIXINGS: dict[str, Mix] = {
    "mean": weighted_mean,
    "median": weighted_median,
    "trimmed-mean": trimmed_mean,
}
"""The rules by their names in a run config."""


def _by_entry(
    statistic: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
    weights: NDArray[Any],
    values: NDArray[Any],
) -> NDArray[Any]:
    """Apply a statistic of sorted values and their weights, both (M, L), stretch by stretch."""
    flat = values.reshape(len(values), -1)
    mixed = np.empty((len(weights), flat.shape[1]), dtype=values.dtype)
    for start in range(0, flat.shape[1], STRETCH):
        columns = slice(start, start + STRETCH)
        order = np.argsort(flat[:, columns], axis=0, kind="stable")
        ascending = np.take_along_axis(flat[:, columns], order, axis=0)
        for receiver, row in enumerate(weights):
            below = np.cumsum(row[order], axis=0)
            # With the row's own total, rounding cannot leave an entry without a middle.
            mixed[receiver, columns] = statistic(below / below[-1], ascending)
    return mixed.reshape(len(weights), *values.shape[1:])


def _median(below: NDArray[Any], ascending: NDArray[Any]) -> NDArray[Any]:
    """Return the middle between the lowest and the highest median, (L,)."""
    lower = (below >= 0.5 - 1e-9).argmax(axis=0)
    upper = (below > 0.5 + 1e-9).argmax(axis=0)
    ends = np.take_along_axis(ascending, np.stack([lower, upper]), axis=0)
    middle: NDArray[Any] = ends.mean(axis=0)
    return middle


def _trimmed_mean(below: NDArray[Any], ascending: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of the weight between both trimmed ends, (L,)."""
    inside = np.clip(below, TRIMMED, 1 - TRIMMED)
    kept = np.diff(inside, axis=0, prepend=TRIMMED)
    # Rounding must not let a trimmed value of any size back in.
    kept[kept < 1e-9] = 0
    mean: NDArray[Any] = (kept * ascending).sum(axis=0) / kept.sum(axis=0)
    return mean
