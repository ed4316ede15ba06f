"""Mixtures of arrays, entry by entry, and limits on the influence of one client.

A median or a trimmed mean protects against a minority of wrong arrays (Yin et al.,
*Byzantine-Robust Distributed Learning*, ICML 2018, arXiv:1803.01498). Here each receiver has its
own weights. Limits on a client's weight and on the size of what it sends are multiples of the
median over clients, which a minority cannot move far (Sun et al., *Can You Really Backdoor
Federated Learning?*, 2019, arXiv:1911.07963, bound updates likewise).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.flower import log
from strategies.core.replies import Arrays, Reply

TRIMMED = 0.25
"""Share of the weight that a trimmed mean leaves out at each end of an entry's values."""

STRETCH = 2**16  # number of entries that are sorted at once

Mix = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""Mixes arrays of M givers for N receivers: weights (N, M) and values (M, ...) to (N, ...)."""


def require_weights(
    hook: str, weights: Any, shape: tuple[int, ...], sums: NDArray[Any]
) -> NDArray[Any]:
    """Return the weights that a hook of a method returned, after checking their shape and sums.

    Raises `ValueError` unless they are numbers of that shape, not negative, whose rows have these
    sums.
    """
    found = np.asarray(weights)
    if found.shape != shape or not np.issubdtype(found.dtype, np.number):
        told = f"has the shape {found.shape} and the type {found.dtype}"
    elif not (found >= 0).all():
        told = "has negative or missing numbers"
    elif not np.allclose(found.sum(axis=1), sums, atol=1e-4):
        told = f"has rows that sum to {found.sum(axis=1).round(4).tolist()}"
    else:
        return found
    raise ValueError(
        f"{hook} {told}; return numbers {shape}, not negative, whose rows sum to "
        f"{sums.round(4).tolist()}"
    )


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


# ---- Limits on the influence of one client ----------------------------------------------


def upper_limit(values: NDArray[np.float64], multiple: float) -> float:
    """Return a multiple of the median of values (R,); infinity for multiple 0, or median 0."""
    if not multiple or not len(values):
        return np.inf
    return float(multiple * np.median(values)) or np.inf


def with_clipped_updates(
    replies: Mapping[int, Reply], sent_to: Callable[[Reply], Arrays], multiple: float
) -> dict[int, Reply]:
    """Shorten updates whose norm is above a multiple of the median norm of the round; 0 for none.

    An update is the difference of an array from the one of that name in `sent_to(reply)`; others
    are not bounded. If most clients return an array as they received it, nobody changes it.
    """
    if not multiple:
        return dict(replies)
    norms = {
        n: {
            name: float(np.linalg.norm((reply.arrays[name] - start).astype(np.float64)))
            for name, start in sent_to(reply).items()
        }
        for n, reply in replies.items()
    }
    names = next(iter(norms.values()), {}).keys()
    limits = {
        name: float(multiple * np.median([norm[name] for norm in norms.values()])) for name in names
    }
    bounded = dict(replies)
    for n, reply in replies.items():
        sent = sent_to(reply)
        for name in (name for name in names if norms[n][name] > limits[name]):
            log(WARNING, "Clipped: client %d, the norm of the update of its %s is %.3g, and %.3g "
                "is allowed (update-cap = %g)", n, name, norms[n][name], limits[name],
                multiple)  # fmt: skip
            array = reply.arrays[name]
            shorter = limits[name] / norms[n][name] * (array - sent[name])
            clipped = (sent[name] + shorter).astype(array.dtype)
            bounded[n] = replace(bounded[n], arrays={**bounded[n].arrays, name: clipped})
    return bounded


def with_clipped_rows(
    replies: Mapping[int, Reply],
    name: str,
    counts: Callable[[Reply], NDArray[np.bool_]],
    multiple: float,
) -> dict[int, Reply]:
    """Shorten rows of an array (K, d) whose norm is above a multiple of the median over clients.

    Compared is the longest row of each client, so that nobody counts more by sending more rows.
    `counts(reply)` (K,) are the rows that count.
    """
    norms = {
        n: np.linalg.norm(reply.arrays[name].astype(np.float64), axis=1) * counts(reply)
        for n, reply in replies.items()
    }
    longest = {n: float(rows.max(initial=0.0)) for n, rows in norms.items()}
    limit = upper_limit(np.array([norm for norm in longest.values() if norm]), multiple)
    bounded = dict(replies)
    for n in (n for n, norm in longest.items() if norm > limit):
        log(WARNING, "Clipped: client %d, a row of its %s is %.3g times as long as the median "
            "(update-cap = %g)", n, name, multiple * longest[n] / limit, multiple)  # fmt: skip
        shares = (limit / np.maximum(norms[n], limit))[:, None]
        rows = replies[n].arrays[name]
        shorter = (rows * shares).astype(rows.dtype)
        bounded[n] = replace(replies[n], arrays={**replies[n].arrays, name: shorter})
    return bounded
