"""The state of a strategy: a dataclass of arrays, saved by names and read back by its types.

A method declares its state as a frozen dataclass derived from `State`. A field is an array, or a
dict by int or str of arrays, of dicts or of dataclasses, or such a dataclass itself; it may be
None. An array's name consists of the field and of the keys, as in ``library/3/weights``.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
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
    """Return the state whose `named_arrays` were saved. Fields with a default may be missing.

    Raises `OtherStateError` if an array is missing, or is not part of the state.
    """
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
