"""A matrix between clients, of which only rows and columns of those that have trained are stored.

With N clients of which M have trained, (M, M) and a few vectors of N are all of (N, N).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.state import padded

STARTS = "-starts"
"""What follows a matrix's name in the name of its `PairMatrix.starts`."""


@dataclass(frozen=True)
class PairMatrix:
    """A matrix between clients, (N, N): row = receiver, column = giver.

    Entry (n, m) of clients that have not both trained is that of the start: ``diagonal[n]`` if
    they are the same, else ``receivers[n] * givers[m]``.
    """

    values: NDArray[np.float64]
    """Shape (M, M), the entries among clients that have trained, by ascending partition-id."""
    places: NDArray[np.int64]
    """Shape (N,), each client's row and column of `values`; -1 if it has not trained."""
    diagonal: NDArray[np.float64]
    receivers: NDArray[np.float64]
    givers: NDArray[np.float64]
    """Shape (N,), the entries at the start."""

    @classmethod
    def starting(
        cls,
        diagonal: NDArray[np.float64],
        receivers: NDArray[np.float64],
        givers: NDArray[np.float64],
    ) -> "PairMatrix":
        """Return a matrix with the entries of the start, (N,) each, before anybody has trained."""
        nobody = np.full(len(diagonal), -1)
        return cls(np.zeros((0, 0)), nobody, diagonal, receivers, givers)

    @classmethod
    def equal(cls, num_clients: int, new_clients: Sequence[int]) -> "PairMatrix":
        """Weigh all clients in training alike; a new client weighs them and itself alike."""
        num_training = num_clients - len(new_clients)
        weights, givers = np.full(num_clients, 1 / num_training), np.ones(num_clients)
        weights[new_clients], givers[new_clients] = 1 / (num_training + 1), 0
        return cls.starting(weights, weights, givers)

    @classmethod
    def zeros(cls, num_clients: int) -> "PairMatrix":
        """Return a matrix of zeros."""
        return cls.starting(*np.zeros((3, num_clients)))

    @classmethod
    def identity(cls, num_clients: int) -> "PairMatrix":
        """Return the identity."""
        return cls.starting(np.ones(num_clients), *np.zeros((2, num_clients)))

    @property
    def members(self) -> NDArray[np.int64]:
        """Partition-ids of the clients that have trained, (M,), in ascending order."""
        return np.flatnonzero(self.places >= 0)

    def at(self, receivers: Iterable[int], givers: Iterable[int]) -> NDArray[np.float64]:
        """Return the entries of some receivers, (R,), and givers, (S,); shape (R, S)."""
        rows, columns = _ids(receivers), _ids(givers)
        entries = np.outer(self.receivers[rows], self.givers[columns])
        same = np.equal.outer(rows, columns)
        entries[same] = np.broadcast_to(self.diagonal[rows, None], same.shape)[same]
        trained = np.ix_(*(np.flatnonzero(self.places[ids] >= 0) for ids in (rows, columns)))
        stored = np.ix_(*(ids[ids >= 0] for ids in (self.places[rows], self.places[columns])))
        entries[trained] = self.values[stored]
        return entries

    def whole(self) -> NDArray[np.float64]:
        """Return all entries, (N, N)."""
        everybody = np.arange(len(self.places))
        return self.at(everybody, everybody)

    def with_members(self, partition_ids: Iterable[int]) -> "PairMatrix":
        """Return the matrix after some more clients have trained; no entry changes."""
        places = self.places.copy()
        places[_ids(partition_ids)] = 0
        members = np.flatnonzero(places >= 0)
        if len(members) == len(self.values):
            return self
        places[members] = np.arange(len(members))
        return replace(self, values=self.at(members, members), places=places)

    def changed(
        self, receivers: Iterable[int], givers: Iterable[int], entries: NDArray[Any]
    ) -> "PairMatrix":
        """Return the matrix with other entries, (R, S), among clients that have trained."""
        values = self.values.copy()
        values[np.ix_(self.places[_ids(receivers)], self.places[_ids(givers)])] = entries
        return replace(self, values=values)

    def scaled(self, factor: float) -> "PairMatrix":
        """Return the matrix with all entries multiplied by a factor."""
        return replace(
            self,
            values=self.values * factor,
            diagonal=self.diagonal * factor,
            receivers=self.receivers * factor,
        )

    def with_more_clients(
        self, num_clients: int, diagonal: float = 0.0, receiver: float = 0.0, giver: float = 0.0
    ) -> "PairMatrix":
        """Return the matrix for more clients, who have not trained, with entries of the start."""
        return replace(
            self,
            places=padded(self.places, num_clients, -1),
            diagonal=padded(self.diagonal, num_clients, diagonal),
            receivers=padded(self.receivers, num_clients, receiver),
            givers=padded(self.givers, num_clients, giver),
        )

    # ---- In files --------------------------------------------------------------------

    @property
    def starts(self) -> NDArray[np.float64]:
        """Places, and the entries of the start, (4, N), from which `whole_of` fills the matrix."""
        return np.stack([self.places, self.diagonal, self.receivers, self.givers])

    def named(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return the arrays that a run writes of the matrix each round, by name."""
        return {name: self.values, f"{name}{STARTS}": self.starts}


def whole_of(values: NDArray[Any], starts: NDArray[Any]) -> NDArray[np.float64]:
    """Return all entries, (N, N), from the values, (M, M), and the starts, (4, N), of a file."""
    places, *start = starts
    return PairMatrix(values, places.astype(np.int64), *start).whole()


def _ids(partition_ids: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(partition_ids), dtype=np.int64)
