"""What methods share whose clients exchange soft predictions: the wire, privacy, mixing.

Predictions may be clipped and noised before they leave a client (`released_predictions`),
rounded to fewer bytes on the wire (`NumberFormat`), and mixed by a mean or, against clients
that lie, by a median (`MIXINGS`). The defaults do none of that.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import INFO
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import (
    ImpossiblePlanError,
    InvalidReplyError,
    Payload,
    PersonalizedStrategy,
    Reply,
    RunObserver,
    RunPlan,
    Settings,
    check_simplex,
)
from strategies.privacy import privacy_spent

PREDICTIONS = "predictions"
"""Name of a reply's array of soft predictions."""


# ---- Numbers on the wire -----------------------------------------------------------------


@dataclass(frozen=True)
class NumberFormat:
    """Probabilities on the wire as floating-point numbers.

    Attributes
    ----------
    dtype : str
        NumPy's name of the type.
    """

    dtype: str

    def shapes(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every array in which probabilities travel."""
        return {name: shape}

    def encode(self, name: str, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Turn probabilities into the arrays that travel."""
        return {name: probabilities.astype(self.dtype)}

    def decode(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Turn arrays that travelled into float32 numbers, exactly as they came."""
        return arrays[name].astype(np.float32)

    def probabilities(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Turn arrays that travelled into probabilities, rows on the simplex as they were."""
        return self.decode(name, arrays)

    def tolerance(self, classes: int) -> float:
        """Return how far rounding may take a row's sum from 1, or an entry below 0."""
        return 1e-3


class RoundedFormat(NumberFormat):
    """Probabilities that rounding takes off the simplex, and that are put back on it."""

    def probabilities(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Scale the rows to sum 1 again."""
        return normalized_rows(np.maximum(self.decode(name, arrays), 0))


class EightBitFormat(RoundedFormat):
    """Square roots of probabilities, each one of 256 levels between the smallest and the largest.

    Small probabilities matter, since methods take their logarithms: levels of the roots lie
    close together near zero, and the smallest entry comes out as it went in.
    """

    LEVELS = 255

    def shapes(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the levels and of the two ends of their range."""
        return {name: shape, f"{name}-range": (2,)}

    def encode(self, name: str, probabilities: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Round the roots to the nearest level."""
        roots = np.sqrt(probabilities)
        low, high = np.float32(roots.min()), np.float32(roots.max())
        step = (high - low) / self.LEVELS or np.float32(1)
        levels = np.rint((roots - low) / step).astype(self.dtype)
        return {name: levels, f"{name}-range": np.array([low, high], dtype=np.float32)}

    def decode(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the squares of the levels' values."""
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
"""How probabilities can travel: 4, 2 or 1 byte a number."""


# ---- Mixing ------------------------------------------------------------------------------


def weighted_mean(weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
    """Mix the givers' soft predictions into one teacher a receiver, by their mean.

    Parameters
    ----------
    weights : ndarray
        Shape (N, M), rows on the simplex.
    predictions : ndarray
        Shape (M, P, K), soft predictions of the M givers.

    Returns
    -------
    ndarray
        Shape (N, P, K).
    """
    givers, samples, classes = predictions.shape
    mixed = weights.astype(predictions.dtype) @ predictions.reshape(givers, -1)
    return mixed.reshape(len(weights), samples, classes)


def weighted_median(weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
    """Mix the givers' soft predictions by the weighted median of every single probability.

    Givers that hold less than half of a receiver's weight cannot move an entry beyond those
    of the others, whatever they send. The rows are then scaled to sum 1.

    Parameters
    ----------
    weights : ndarray
        Shape (N, M), rows on the simplex.
    predictions : ndarray
        Shape (M, P, K).

    Returns
    -------
    ndarray
        Shape (N, P, K).
    """
    order = np.argsort(predictions, axis=0, kind="stable")
    ascending = np.take_along_axis(predictions, order, axis=0)
    return np.stack([_median_of(row, order, ascending) for row in weights])


def _median_of(row: NDArray[Any], order: NDArray[np.intp], ascending: NDArray[Any]) -> NDArray[Any]:
    below = np.cumsum(row[order], axis=0)
    # With the row's own total, rounding cannot leave an entry without a middle.
    lower = (below >= below[-1] / 2 - 1e-9).argmax(axis=0)
    upper = (below > below[-1] / 2 + 1e-9).argmax(axis=0)
    middle = (
        np.take_along_axis(ascending, lower[None], axis=0)[0]
        + np.take_along_axis(ascending, upper[None], axis=0)[0]
    ) / 2
    return normalized_rows(middle)


def normalized_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Scale every row to sum 1; a row of zeros becomes uniform."""
    sums = rows.sum(axis=-1, keepdims=True)
    uniform = np.full_like(rows, 1 / rows.shape[-1])
    return np.where(sums > 0, rows / np.where(sums > 0, sums, 1), uniform)


MIXINGS: dict[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]] = {
    "mean": weighted_mean,
    "median": weighted_median,
}
"""How predictions are mixed: (N, M) weights and (M, P, K) predictions to (N, P, K)."""


# ---- The strategy ------------------------------------------------------------------------


class SoftPredictionSettings(Settings):
    """Settings of all methods that exchange soft predictions.

    Attributes
    ----------
    number_format : str
        ``float32``, ``float16`` or ``int8``: predictions and teachers on the wire.
    mixing : str
        ``mean``, or ``median`` against clients that send well-formed lies.
    clip_norm : float
        Largest distance, in L2 over all P·K entries, of a client's predictions from uniform
        ones; 0 for no bound.
    noise_multiplier : float
        Standard deviation of the Gaussian noise on predictions as a multiple of their
        sensitivity ``2 * clip_norm``; 0 for no noise.
    noise_seed : int
        -1 draws the noise from the operating system, secret and new each time. Any other
        makes an experiment repeatable, and lets whoever knows it take the noise off again.
    delta : float
        The delta at which the privacy spent is reported.
    """

    number_format: Literal["float32", "float16", "int8"] = "float32"
    mixing: Literal["mean", "median"] = "mean"
    clip_norm: float = Field(default=0.0, ge=0)
    noise_multiplier: float = Field(default=0.0, ge=0)
    noise_seed: int = Field(default=-1, ge=-1)
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @property
    def wire(self) -> NumberFormat:
        """The number format itself."""
        return NUMBER_FORMATS[self.number_format]


class SoftPredictionStrategy(PersonalizedStrategy):
    """A strategy whose clients reply with soft predictions on public samples, and nothing else.

    Models stay with the clients, so they may differ.

    Attributes
    ----------
    releases : ndarray
        Shape (N,), how often each client was asked for predictions.
    """

    settings_type = SoftPredictionSettings
    settings: SoftPredictionSettings
    needs_public_data = True

    def __init__(
        self, plan: RunPlan, settings: Settings, observer: RunObserver | None = None
    ) -> None:
        super().__init__(plan, settings, observer)
        self.releases = np.zeros(plan.num_clients, dtype=np.int64)

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse noise without a bound on what it hides."""
        own = cls.settings_type.model_validate(settings)
        if own.noise_multiplier and not own.clip_norm:
            raise ImpossiblePlanError(
                f"{own.table}.noise-multiplier = {own.noise_multiplier:g} needs a "
                f"{own.table}.clip-norm above 0: noise hides no more than what is bounded."
            )

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, tuple[int, ...]]:
        """Ask for soft predictions, (P, K)."""
        shape = (self.plan.public_size, self.plan.num_classes)
        return self.settings.wire.shapes(PREDICTIONS, shape)

    def check_reply(self, reply: Reply) -> None:
        """Refuse predictions whose rows are off the simplex."""
        wire = self.settings.wire
        predictions = wire.decode(PREDICTIONS, reply.arrays)
        if not np.isfinite(predictions).all():
            raise InvalidReplyError(f"{PREDICTIONS} spans a range that is too wide")
        check_simplex(predictions, PREDICTIONS, wire.tolerance(self.plan.num_classes))

    def stack_predictions(self, replies: Mapping[int, Reply]) -> NDArray[np.float32]:
        """Return the repliers' soft predictions, shape (R, P, K), by ascending partition-id."""
        wire = self.settings.wire
        return np.stack([wire.probabilities(PREDICTIONS, r.arrays) for r in replies.values()])

    def mix(self, weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
        """Mix predictions as the settings ask: (N, M) and (M, P, K) to (N, P, K)."""
        return MIXINGS[self.settings.mixing](weights, predictions)

    def payload(self, name: str, probabilities: NDArray[Any]) -> Payload:
        """Encode probabilities for clients."""
        arrays = self.settings.wire.encode(name, probabilities)
        return {key: Array(array) for key, array in arrays.items()}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients to train; each that is asked may release predictions, heard or not."""
        messages = super().configure_train(server_round, arrays, config, grid)
        self.releases[list(self._sent.values())] += 1
        return messages

    def round_metrics(self) -> dict[str, float]:
        """Return ``epsilon``, the most privacy that a client has spent, where there is noise."""
        settings = self.settings
        if not settings.noise_multiplier:
            return {}
        releases = int(self.releases.max())
        epsilon = privacy_spent(settings.noise_multiplier, releases, settings.delta)
        log(
            INFO,
            "Privacy spent by a client: epsilon %.3g at delta %.3g, %d releases of predictions",
            epsilon,
            settings.delta,
            releases,
        )
        return {"epsilon": epsilon}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return how often each client has released predictions."""
        return {"releases": self.releases}

    def restore(self, completed_rounds: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the privacy that was spent before."""
        super().restore(completed_rounds, state)
        self.releases = np.array(state["releases"])
