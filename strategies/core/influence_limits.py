"""Limits on the influence of one client: its weight, and the size of its update.

Both are multiples of the median over clients, which a minority of clients cannot move far.
Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, *Can You Really Backdoor Federated Learning?*,
2019, arXiv:1911.07963, bound the norm of updates likewise.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING

import numpy as np
from numpy.typing import NDArray

from strategies.core.flower import log
from strategies.core.replies import Arrays, Reply


def upper_limit(values: NDArray[np.float64], multiple: float) -> float:
    """Return a multiple of the median of some values; infinity for multiple 0, or median 0.

    Parameters
    ----------
    values : ndarray
        Shape (R,), non-negative.
    multiple : float
        At least 1, or 0 for no limit.
    """
    if not multiple or not len(values):
        return np.inf
    return float(multiple * np.median(values)) or np.inf


def with_clipped_updates(
    replies: Mapping[int, Reply], sent_to: Callable[[Reply], Arrays], multiple: float
) -> dict[int, Reply]:
    """Shorten updates whose norm is above a multiple of the median norm of the round.

    An update is the difference of an array from what the client received. Arrays of each name are
    compared with each other. An array within the limit is not changed.

    Parameters
    ----------
    replies : mapping of int to Reply
        The valid replies of a round.
    sent_to : callable
        Returns, for one reply, the arrays that its arrays are compared with, by name. Arrays of
        the reply without such an array are not bounded.
    multiple : float
        At least 1, or 0 for no limit.

    Returns
    -------
    dict of int to Reply
        The replies, with shortened updates.
    """
    if not multiple:
        return dict(replies)
    norms = {n: _update_norms(reply, sent_to(reply)) for n, reply in replies.items()}
    names = next(iter(norms.values()), {}).keys()
    limits = {
        name: upper_limit(np.array([norm[name] for norm in norms.values()]), multiple)
        for name in names
    }
    bounded = {}
    for n, reply in replies.items():
        above = [name for name in names if norms[n][name] > limits[name]]
        for name in above:
            times = multiple * norms[n][name] / limits[name]
            log(WARNING, "Clipped: client %d, the update of its %s is %.3g times the median "
                "(update-cap = %g)", n, name, times, multiple)  # fmt: skip
        shares = {name: limits[name] / norms[n][name] for name in above}
        bounded[n] = _with_shorter_updates(reply, sent_to, shares) if shares else reply
    return bounded


def _update_norms(reply: Reply, sent: Arrays) -> dict[str, float]:
    return {
        name: float(np.linalg.norm((reply.arrays[name] - start).astype(np.float64)))
        for name, start in sent.items()
    }


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
