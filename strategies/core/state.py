"""Saving and restoring the state of a strategy."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import Arrays


class KeepsState:
    """Saves and restores the attributes in `kept` as named arrays."""

    kept: ClassVar[tuple[str, ...]] = ()
    """Attributes that form the state: arrays, or dicts of arrays by name."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as named arrays."""
        arrays: dict[str, NDArray[Any]] = {}
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                arrays |= {f"{name}/{key}": array for key, array in value.items()}
            else:
                arrays[name] = value
        return arrays

    def set_state(self, state: Arrays) -> None:
        """Set the attributes of `kept` from the arrays that `state` returned; ignore others."""
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in state.items():
            name, slash, part = key.partition("/")
            if name not in self.kept:
                continue
            if slash:
                parts.setdefault(name, {})[part] = np.array(array)
            else:
                setattr(self, name, np.array(array))
        for name, arrays in parts.items():
            setattr(self, name, arrays)
        self.grow()

    def grow(self) -> None:
        """Extend a restored state to `num_clients`, which may be more than when it was saved."""
