"""What a strategy can be continued from: the attributes that it names."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import Arrays


class KeepsState:
    """Names the attributes that it keeps, and writes and reads them as named arrays."""

    kept: ClassVar[tuple[str, ...]] = ()
    """Attributes from which the method can be continued: arrays, or dicts of arrays by name."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which the method can be continued, those of `kept`."""
        arrays: dict[str, NDArray[Any]] = {}
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                arrays |= {f"{name}/{key}": array for key, array in value.items()}
            else:
                arrays[name] = value
        return arrays

    def set_state(self, state: Arrays) -> None:
        """Set the attributes of `kept` to what `state` returned."""
        parts: dict[str, dict[str, NDArray[Any]]] = {}
        for key, array in state.items():
            name, slash, part = key.partition("/")
            if slash:
                parts.setdefault(name, {})[part] = np.array(array)
            else:
                setattr(self, name, np.array(array))
        for name, arrays in parts.items():
            setattr(self, name, arrays)
