"""Probability vectors: checks, projections, and number formats on the network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.replies import ExpectedArray


class NotOnSimplexError(ValueError):
    """Rows that are not probability distributions; the message says why."""


def check_simplex(rows: NDArray[Any], name: str, tolerance: float = 1e-3) -> None:
    """Refuse rows (…, K) that are no probability distributions. Raises `NotOnSimplexError`.

    A row's sum may differ from 1, and an entry be below 0, by `tolerance`.
    """
    if rows.size and float(rows.min()) < -tolerance:
        raise NotOnSimplexError(f"{name} holds the negative number {rows.min():.3g}; {_WANTED}")
    row_sums = rows.sum(axis=-1, dtype=np.float64).ravel()
    if not row_sums.size:
        return
    worst = row_sums[np.abs(row_sums - 1).argmax()]
    if abs(worst - 1) > tolerance:
        raise NotOnSimplexError(f"{name} has a row that sums to {worst:.4g}, not 1; {_WANTED}")


_WANTED = "each row has to be a probability distribution, such as softmax(logits)"


def softmax(rows: NDArray[Any], temperature: float = 1.0) -> NDArray[Any]:
    """Return ``softmax(rows / T)`` over the last axis. SciPy's would be loaded by every client."""
    exponentials = np.exp((rows - rows.max(axis=-1, keepdims=True)) / temperature)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def normalized_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Scale every row to sum 1; a row of zeros becomes uniform."""
    sums = rows.sum(axis=-1, keepdims=True)
    uniform = rows.dtype.type(1 / rows.shape[-1])
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), uniform)


def equal_weights(num_clients: int, new_clients: Sequence[int]) -> NDArray[np.float64]:
    """Weigh all in training alike, (N, N); a new client, a row, weighs itself alone."""
    weights = np.ones((num_clients, num_clients))
    weights[:, new_clients] = 0
    weights[new_clients, new_clients] = 1
    return weights / weights.sum(axis=1, keepdims=True)


def project_onto_simplex(rows: NDArray[Any], mass: NDArray[Any]) -> NDArray[Any]:
    """Project every row of (R, M) onto the vectors that are non-negative and sum to its mass, (R,).

    The Euclidean projection subtracts one threshold from a row and clips at zero; the threshold
    follows from the sorted row.
    """
    # In place: with many clients the rows are the largest array that a server holds.
    descending = np.sort(rows, axis=1)[:, ::-1]
    thresholds = np.cumsum(descending, axis=1)
    thresholds -= mass[:, None]
    thresholds /= np.arange(1, rows.shape[1] + 1)
    # The row's first entry is always above its threshold (mass > 0), so this is >= 1.
    support = np.maximum((descending > thresholds).sum(axis=1), 1)
    threshold = np.take_along_axis(thresholds, support[:, None] - 1, axis=1)
    return np.maximum(rows - threshold, 0.0)


@dataclass(frozen=True)
class NumberFormat:
    """Probabilities as floating-point numbers; `smallest` stands for smaller ones in logarithms.

    Where a format rounds to zero, it is about the geometric mean of what it rounds so.
    """

    dtype: str
    smallest: float

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, ExpectedArray]:
        """Return the specification of the encoded arrays for a shape."""
        return {name: ExpectedArray(shape, self.dtype)}

    def encode(self, name: str, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Encode probabilities."""
        return {name: probabilities.astype(self.dtype)}

    def decode(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode arrays to float32 without correction."""
        return arrays[name].astype(np.float32, copy=False)

    def corrected(self, decoded: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return decoded probabilities, at least 0: the tolerance lets small negatives pass."""
        return np.maximum(decoded, 0)

    def tolerance(self, classes: int) -> float:
        """Return how far rounding may move the sum of a row from 1, or an entry below 0."""
        return 1e-3

    def received(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode probabilities from the server."""
        return self.corrected(self.decode(name, arrays))

    def checked(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode probabilities of a client; refuse rows off the simplex beyond rounding."""
        decoded = self.decode(name, arrays)
        check_simplex(decoded, name, self.tolerance(decoded.shape[-1]))
        return self.corrected(decoded)


class RoundedFormat(NumberFormat):
    """Rounded probabilities, whose rows are scaled to sum 1 after decoding."""

    def corrected(self, decoded: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return decoded probabilities, at least 0, with rows scaled to sum 1."""
        return normalized_rows(super().corrected(decoded))


class EightBitFormat(RoundedFormat):
    """Square roots of probabilities in 256 levels between the smallest and the largest.

    Levels of the square roots are dense near zero, which matters in logarithms.
    """

    LEVELS = 255

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, ExpectedArray]:
        """Return the specification of the levels and of the ends of their range."""
        return {**super().parts(name, shape), f"{name}-range": ExpectedArray((2,))}

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
    "float32": NumberFormat("float32", 1e-12),
    "float16": RoundedFormat("float16", 2**-25 / math.e),
    "int8": EightBitFormat("uint8", (0.5 / EightBitFormat.LEVELS / math.e) ** 2),
}
"""Number formats by name, with 4, 2 or 1 byte per number."""


@dataclass(frozen=True)
class DueProbabilities(ExpectedArray):
    """Specification of probabilities of a reply, with rows on the simplex."""

    number_format: NumberFormat = field(kw_only=True)

    def parts(self, name: str) -> dict[str, ExpectedArray]:
        """Return the specification of the encoded arrays."""
        return self.number_format.parts(name, self.shape)

    def value(self, name: str, parts: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Decode and check the probabilities."""
        return self.number_format.checked(name, parts)
