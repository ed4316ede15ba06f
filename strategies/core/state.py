"""The state of a strategy: a dataclass of arrays, saved by names and read back by its types.

A method declares its state as a frozen dataclass derived from `State`. A field is an array, or a
dict by int or str of arrays, of dicts or of dataclasses, or such a dataclass itself; it may be
None. An array's name consists of the field and of the keys, as in ``library/3/weights``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import Arrays


@dataclass(frozen=True)
class State:
    """The state of a method that has none, and the base of all others."""


AnyState = TypeVar("AnyState", bound=State)


ALLOWED = (
    "it may be an array, or a dict by int or str of arrays, dicts or dataclasses, such as "
    "dict[int, NDArray[np.float32]], or such a dataclass"
)
"""What a part of a state may be, for error messages."""


class OtherStateError(ValueError):
    """Saved arrays that are not those of a method's state, as from another version."""


def unsaved() -> Any:
    """Declare a field that is not saved, and so is computed again after an interruption."""
    return field(default=(), metadata={"unsaved": True})


def named_arrays(value: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a state, or of a part of it, by their names."""
    arrays: dict[str, NDArray[Any]] = {}
    parts = (
        value
        if isinstance(value, Mapping)
        else {f.name: getattr(value, f.name) for f in saved_fields(value)}
    )
    for key, part in parts.items():
        if "/" in str(key):
            raise TypeError(f"{key!r} in a state holds a slash, which separates names of arrays")
        if isinstance(part, np.ndarray):
            arrays[str(key)] = part
        elif isinstance(part, Mapping) or (is_dataclass(part) and not isinstance(part, type)):
            arrays |= {f"{key}/{name}": array for name, array in named_arrays(part).items()}
        elif part is not None:
            raise TypeError(f"{key!r} in a state is a {type(part).__name__}; {ALLOWED}")
    return arrays


def read_state(kind: type[AnyState], arrays: Arrays) -> AnyState:
    """Return the state whose `named_arrays` were saved. Fields with a default may be missing."""
    state: AnyState = _read(kind, _nested(arrays), "")
    for name in arrays.keys() - named_arrays(state).keys():
        raise OtherStateError(f"it holds {name}, which this version does not know")
    return state


def saved_fields(kind: Any) -> list[Any]:
    """Return the fields of a dataclass that are saved."""
    return [f for f in fields(kind) if "unsaved" not in f.metadata]


def _nested(arrays: Arrays) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *path, last = name.split("/")
        branch = tree
        for key in path:
            branch = branch.setdefault(key, {})
        branch[last] = array
    return tree


def _read(hint: Any, tree: Any, name: str) -> Any:
    """Return a value of a type from nested dicts of arrays; `tree` is None if nothing was saved."""
    kinds = get_args(hint)
    if NoneType in kinds:
        return None if tree is None else _read(kinds[0], tree, name)
    if get_origin(hint) is dict and kinds[0] in (int, str):
        of_key, of_value = kinds
        parts = {of_key(key): part for key, part in (tree or {}).items()}
        return {key: _read(of_value, parts[key], f"{name}{key}/") for key in sorted(parts)}
    if is_dataclass(hint):
        return _read_fields(hint, tree or {}, name)
    if hint is not np.ndarray and get_origin(hint) is not np.ndarray:
        raise TypeError(f"{name[:-1]!r} in a state is declared as {_spelled(hint)}; {ALLOWED}")
    if tree is None:
        raise OtherStateError(f"it lacks {name[:-1]}")
    return np.array(tree)


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _read_fields(kind: Any, tree: dict[str, Any], name: str) -> Any:
    hints = get_type_hints(kind)
    return kind(
        **{
            f.name: _read(hints[f.name], tree.get(f.name), f"{name}{f.name}/")
            for f in saved_fields(kind)
            if f.name in tree or (f.default is MISSING and f.default_factory is MISSING)
        }
    )


# ---- Growing runs: more clients when a run is continued --------------------------------------


def padded(rows: NDArray[Any], size: int, value: float = 0) -> NDArray[Any]:
    """Extend an array over clients, (M, …), to N clients, whose entries are `value`."""
    widths = [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
    return np.pad(rows, widths, constant_values=value)


def with_means(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Extend rows of clients, (M, …), to size N: who joins has the mean of the others, if any."""
    if not len(rows) or len(rows) == size:
        return rows
    mean = rows.mean(axis=0, dtype=np.float64, keepdims=True).astype(rows.dtype)
    return np.concatenate([rows, np.repeat(mean, size - len(rows), axis=0)])


def with_equal_weights(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Extend weights (M, M) to N clients: who joins has 1/N, and rows sum to 1."""
    before = len(weights)
    grown = np.full((size, size), 1 / size)
    grown[:before, :before] = weights * (before / size)
    return grown


# ---- Matrices between clients ----------------------------------------------------------------

STARTS = "-starts"  # what follows a matrix's name in the name of its `PairMatrix.starts`


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

    def with_equal_clients(self, num_clients: int) -> "PairMatrix":
        """Return the matrix for N clients, where those that join have 1/N; rows still sum to 1."""
        share = len(self.places) / num_clients
        scaled = replace(
            self,
            values=self.values * share,
            diagonal=self.diagonal * share,
            receivers=self.receivers * share,
        )
        return scaled.with_more_clients(num_clients, 1 / num_clients, 1 / num_clients, 1)

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
