"""Limits on the influence of one client: its weight, and the size of what it sends.

Both are multiples of the median over clients, which a minority cannot move far (Sun et al., *Can
You Really Backdoor Federated Learning?*, 2019, arXiv:1911.07963, bound updates likewise).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING

import numpy as np
from numpy.typing import NDArray

from strategies.core.flower import log
from strategies.core.replies import Arrays, Reply


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
    bounded = {}
    for n, reply in replies.items():
        above = [name for name in names if norms[n][name] > limits[name]]
        for name in above:
            log(WARNING, "Clipped: client %d, the norm of the update of its %s is %.3g, and %.3g "
                "is allowed (update-cap = %g)", n, name, norms[n][name], limits[name],
                multiple)  # fmt: skip
        shares = {name: limits[name] / norms[n][name] for name in above}
        bounded[n] = _with_shorter_updates(reply, sent_to, shares) if shares else reply
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


def _with_shorter_updates(
    reply: Reply, sent_to: Callable[[Reply], Arrays], shares: Mapping[str, float]
) -> Reply:
    sent = sent_to(reply)
    shorter = {
        name: (sent[name] + share * (reply.arrays[name] - sent[name])).astype(
            reply.arrays[name].dtype
        )
        for name, share in shares.items()
    }
    return replace(reply, arrays={**reply.arrays, **shorter})
