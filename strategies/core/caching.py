"""Caching of soft predictions: the teacher on a public sample is reused for some rounds.

K. Azuma, T. Nishio, Y. Kitagawa, W. Nakano, T. Tanimura, *Soft-Label Caching and Sharpening for
Communication-Efficient Federated Distillation* (SCARLET), IEEE Transactions on Mobile Computing,
2026, doi:10.1109/TMC.2026.3652819, arXiv:2504.19602.

The teacher that the server computes from the clients' predictions on a public sample is reused for
D rounds (`cache-rounds`). Clients predict only on samples without a valid teacher, and receive only
the teachers that they lack. With D = 0 everything is sent in each round.

Differences from the paper
--------------------------
- Cached are the teachers of the method: the mean of `fedmd` and `ds-fl`, the client's own mixture
  of `kt-pfl` and its variants, the centroids of `perfed-ckt`. The paper caches one sharpened mean.
- Only caching is implemented, not the paper's sharpening by powers. `ds-fl` has its own sharpening.
- When a teacher expires, the new one is cached at once. The authors' released implementation
  caches it one request later.
- Coefficients and clusters are computed from predictions on the requested samples. Without
  requested samples they do not change.
- A method with the same public samples in all rounds, such as `perfed-ckt`, exchanges all samples
  in one round and none in the following D rounds.

As in the released implementation, the server tracks which teachers each client has, and sends a
client that was absent the missing teachers on the round's samples.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ASKED = "asked"
"""Name of a message's bit mask: the samples of the round on which to predict; all if absent."""

TAUGHT = "taught"
"""Name of a message's bit mask: the samples of the previous round that its teachers belong to; all
if absent."""


def are_due(made: NDArray[np.int32], server_round: int, cache_rounds: int) -> NDArray[np.bool_]:
    """Return which samples have no teacher or an expired one.

    Parameters
    ----------
    made : ndarray
        Shape (P,), the round of each sample's teacher, 0 for none.
    server_round : int
        The current round.
    cache_rounds : int
        D: a teacher of round s is valid in rounds s + 1 to s + D.

    Returns
    -------
    ndarray
        Shape (P,).
    """
    return (made == 0) | (server_round - made > cache_rounds)


def packed(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Encode a mask (P,) for the network, eight samples per byte."""
    return np.packbits(mask)


def unpacked(bits: NDArray[Any], size: int) -> NDArray[np.bool_]:
    """Decode a mask (P,)."""
    return np.unpackbits(bits, count=size).astype(np.bool_)
