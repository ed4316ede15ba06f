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

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.growing import padded, with_means

ASKED = "asked"
"""Name of a message's bit mask: the samples of the round on which to predict; all if absent."""

TAUGHT = "taught"
"""Name of a message's bit mask: the samples of the previous round that its teachers belong to; all
if absent."""


@dataclass(frozen=True)
class TeacherCache:
    """The teachers on the samples of the public pool, and which of them each client has.

    Attributes
    ----------
    made : ndarray
        Shape (pool,), the round of each sample's teacher; 0 for none.
    holds : ndarray
        Shape (N, pool), the round of the teacher that each client has; 0 for none.
    teachers : ndarray
        The teachers, shape (..., pool, K); (0,) before the first.
    """

    made: NDArray[np.int32]
    holds: NDArray[np.int32]
    teachers: NDArray[Any]

    @classmethod
    def empty(cls, num_clients: int, pool: int) -> "TeacherCache":
        """Return a cache for N clients and a pool of public samples, without a teacher."""
        none = np.zeros((num_clients, pool), dtype=np.int32)
        return cls(np.zeros(pool, dtype=np.int32), none, np.empty(0, dtype=np.float32))

    def due(
        self, samples: NDArray[np.int64], server_round: int, cache_rounds: int
    ) -> NDArray[np.bool_]:
        """Return which samples have no teacher or an expired one.

        Parameters
        ----------
        samples : ndarray
            Shape (P,), positions in the pool.
        server_round : int
            The current round.
        cache_rounds : int
            D: a teacher of round s is valid in rounds s + 1 to s + D.

        Returns
        -------
        ndarray
            Shape (P,).
        """
        made = self.made[samples]
        return (made == 0) | (server_round - made > cache_rounds)

    def missing(self, partition_id: int, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for which samples, (P,), a client lacks the newest teacher, (P,)."""
        lacks: NDArray[np.bool_] = self.holds[partition_id, samples] != self.made[samples]
        return lacks

    def taught(
        self, samples: NDArray[np.int64], teachers: NDArray[Any], server_round: int
    ) -> "TeacherCache":
        """Return the cache with the teachers, (..., A, K), that a round made on some samples."""
        shape = (*teachers.shape[:-2], len(self.made), teachers.shape[-1])
        # If the number of clusters changes, all teachers are new.
        known = self.teachers.shape == shape
        cached = self.teachers.copy() if known else np.zeros(shape, dtype=teachers.dtype)
        cached[..., samples, :] = teachers
        made = self.made.copy()
        made[samples] = server_round
        return replace(self, teachers=cached, made=made)

    def held(
        self, samples: NDArray[np.int64], heard: Iterable[int], silent: Iterable[int]
    ) -> "TeacherCache":
        """Return the cache after clients were sent what they lacked on some samples, (P,).

        Those that replied have it. Nothing is known about the silent ones.
        """
        holds = self.holds.copy()
        for n in heard:
            holds[n, samples] = self.made[samples]
        holds[list(silent)] = 0
        return replace(self, holds=holds)

    def with_more_clients(self, num_clients: int, are_personal: bool) -> "TeacherCache":
        """Return the cache for more clients; personal teachers of theirs are the others' mean."""
        teachers = with_means(self.teachers, num_clients) if are_personal else self.teachers
        return replace(self, holds=padded(self.holds, num_clients), teachers=teachers)


def packed_mask(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Encode a mask (P,) for the network, eight samples per byte."""
    return np.packbits(mask)


def unpacked_mask(bits: NDArray[Any], size: int) -> NDArray[np.bool_]:
    """Decode a mask (P,)."""
    return np.unpackbits(bits, count=size).astype(np.bool_)
