"""Randomized response: labels under local differential privacy (Warner 1965, for K classes).

A label is kept with probability beta, and otherwise replaced by one drawn uniformly from all K
classes. Whatever the label is, no reply is more than ``e^epsilon`` times as likely as under another
label. Draws have 53 bits, so the ratio holds up to rounding.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

UniformDraws = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""Returns uniform numbers in (0, 1) of a shape."""


def keep_probability(epsilon: float, num_classes: int) -> float:
    """Return beta, ``(e^epsilon - 1) / (e^epsilon - 1 + K)``, with which a label is kept."""
    rest = math.exp(-epsilon)
    return (1 - rest) / (1 - rest + num_classes * rest)


def randomized(
    labels: NDArray[Any], num_classes: int, epsilon: float, draw: UniformDraws
) -> NDArray[np.uint16]:
    """Return labels (A,) below K after randomized response, each with `epsilon`.

    Draws that somebody else can repeat protect nothing.
    """
    kept, drawn = draw((2, len(labels)))
    others = (drawn * num_classes).astype(np.uint16)
    is_kept = kept < keep_probability(epsilon, num_classes)
    return np.where(is_kept, labels, others).astype(np.uint16)


def label_frequencies(
    replies: NDArray[Any], num_classes: int, epsilon: float
) -> NDArray[np.float64]:
    """Return unbiased estimates of the share of clients with each label, (A, K), from (R, A).

    An estimate may be negative; rows sum to 1.
    """
    beta = keep_probability(epsilon, num_classes)
    shares = (replies[:, :, None] == np.arange(num_classes)).mean(axis=0)
    frequencies: NDArray[np.float64] = (shares - (1 - beta) / num_classes) / beta
    return frequencies
