"""Number formats of probabilities on the network: four, two or one byte per number."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import Due
from strategies.core.simplex import normalized_rows


@dataclass(frozen=True)
class NumberFormat:
    """Probabilities as floating-point numbers.

    Attributes
    ----------
    dtype : str
        NumPy's name of the type.
    """

    dtype: str

    def due(self, name: str, shape: tuple[int, ...]) -> dict[str, Due]:
        """Return the specification of the encoded arrays for a shape."""
        return {name: Due(shape, self.dtype)}

    def encode(self, name: str, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Encode probabilities."""
        return {name: probabilities.astype(self.dtype)}

    def decode(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode arrays to float32 without correction."""
        return arrays[name].astype(np.float32, copy=False)

    def probabilities(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode arrays to probabilities."""
        return self.decode(name, arrays)

    def tolerance(self, classes: int) -> float:
        """Return how far rounding may move the sum of a row from 1, or an entry below 0."""
        return 1e-3


class RoundedFormat(NumberFormat):
    """Rounded probabilities, which are normalized after decoding."""

    def probabilities(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode arrays and scale the rows to sum 1."""
        return normalized_rows(np.maximum(self.decode(name, arrays), 0))


class EightBitFormat(RoundedFormat):
    """Square roots of probabilities in 256 levels between the smallest and the largest.

    Small probabilities matter, because methods take logarithms. Levels of the square roots are
    dense near zero, and the smallest entry is exact.
    """

    LEVELS = 255

    def due(self, name: str, shape: tuple[int, ...]) -> dict[str, Due]:
        """Return the specification of the levels and of the ends of their range."""
        return {**super().due(name, shape), f"{name}-range": Due((2,))}

    def encode(self, name: str, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Encode probabilities as the nearest levels of their square roots."""
        roots = np.sqrt(probabilities)
        low, high = np.float32(roots.min()), np.float32(roots.max())
        step = (high - low) / self.LEVELS or np.float32(1)
        levels = np.rint((roots - low) / step).astype(self.dtype)
        return {name: levels, f"{name}-range": np.array([low, high], dtype=np.float32)}

    def decode(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode levels to probabilities."""
        low, high = arrays[f"{name}-range"].astype(np.float32)
        step = (high - low) / self.LEVELS
        return np.square(low + step * arrays[name]).astype(np.float32)

    def tolerance(self, classes: int) -> float:
        """Return half a level of the widest range for every root, at most sqrt(K) in sum."""
        step = 1 / self.LEVELS
        return float(1e-3 + step * np.sqrt(classes) + classes * step**2 / 4)


NUMBER_FORMATS: dict[str, NumberFormat] = {
    "float32": NumberFormat("float32"),
    "float16": RoundedFormat("float16"),
    "int8": EightBitFormat("uint8"),
}
"""Number formats by name, with 4, 2 or 1 byte per number."""
