"""Soft predictions that need not travel again: what was taught on a sample serves for a time.

K. Azuma, T. Nishio, Y. Kitagawa, W. Nakano, T. Tanimura, *Soft-Label Caching and Sharpening for
Communication-Efficient Federated Distillation* (SCARLET), IEEE Transactions on Mobile Computing,
2026, doi:10.1109/TMC.2026.3652819, arXiv:2504.19602.

What the server has made of the clients' predictions on a public sample serves for D rounds
(`cache-rounds`). Only on samples without such a lesson are clients asked for predictions, and a
client is sent only the lessons that it does not hold. With D = 0 everything travels each round.

Differences from the paper
--------------------------
- What is kept is what a method teaches: the mean of `fedmd` and `ds-fl`, each client's own mixture
  of `kt-pfl` and its variants, the centroids of `perfed-ckt`. The paper knows one sharpened mean.
- Caching alone: the paper's sharpening by powers is not here. `ds-fl` has one of its own.
- A sample whose lesson has expired gets a new one that is kept at once. In the authors' released
  implementation it is kept from the time after that.
- Coefficients and clusters are found from the predictions on the samples that were asked for. Where
  none were, they stay as they are.
- A method whose public samples are the same in all rounds, as `perfed-ckt`, exchanges all or
  nothing: everything in one round, and nothing in the D after it.

As in the released implementation the server knows what each client holds, and sends one that was
away what it lacks of the round's samples.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ASKED = "asked"
"""Name of a message's bits: on which of the round's P samples predictions are asked for. Without
them it is all."""

TAUGHT = "taught"
"""Name of a message's bits: to which of the P samples of the round before its lessons belong.
Without them it is all."""


def are_due(made: NDArray[np.int32], server_round: int, cache_rounds: int) -> NDArray[np.bool_]:
    """Return which samples have no lesson, or one that is too old.

    Parameters
    ----------
    made : ndarray
        Shape (P,), the round of each sample's lesson, 0 where there is none.
    server_round : int
        The round that is asked about.
    cache_rounds : int
        D: a lesson of round s serves in rounds s + 1 to s + D.

    Returns
    -------
    ndarray
        Shape (P,).
    """
    return (made == 0) | (server_round - made > cache_rounds)


def packed(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a mask (P,) as it travels, eight samples a byte."""
    return np.packbits(mask)


def unpacked(bits: NDArray[Any], size: int) -> NDArray[np.bool_]:
    """Return the mask (P,) that travelled."""
    return np.unpackbits(bits, count=size).astype(np.bool_)
