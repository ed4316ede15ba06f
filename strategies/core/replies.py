"""Replies, and what is checked before one of their numbers is used.

Nothing in a reply is trusted: who sent it, the names, shapes and types of its arrays, and every
number are held against what was asked for. A reply that differs is dropped with the reason.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
"""Named arrays of a message."""

Payload = Mapping[str, Array]
"""Named arrays as they travel. Arrays that several clients share are the same object."""

LONGEST_REASON = 200
"""Characters of a failure's reason that are logged and recorded."""

LARGEST_NUMBER = 1e8
"""Largest magnitude in a reply's arrays; far beyond what weights and logits come to."""

LARGEST_LOSS = 1e6
"""Largest magnitude of a metric that enters a mean."""


class InvalidReplyError(ValueError):
    """A reply that must not enter the aggregation; the message says why."""


class TooFewRepliesError(RuntimeError):
    """A round in which too few clients answered to go on."""


@dataclass(frozen=True)
class Due:
    """What an array of a reply has to be.

    Attributes
    ----------
    shape : tuple of int
        Its shape.
    dtype : str
        NumPy's name of its type.
    at_most : bool
        Whether it may have fewer rows than `shape` says, where only the client knows how many.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    at_most: bool = False

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of a shape is what is due."""
        if not self.at_most or len(shape) != len(self.shape):
            return shape == self.shape
        return 0 <= shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]


@dataclass(frozen=True)
class Metric:
    """A number that a method's clients report, and that is recorded per client and round.

    Attributes
    ----------
    name : str
        In kebab case; the column has underscores.
    averaged : bool
        Whether the round's row has the mean over clients, as ``NAME_mean``.
    low, high : float
        What is allowed, both ends included.
    """

    name: str
    averaged: bool = True
    low: float = -LARGEST_LOSS
    high: float = LARGEST_LOSS

    @property
    def column(self) -> str:
        """Its column in the run's tables."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Reply:
    """A client's reply that passed the checks.

    Attributes
    ----------
    partition_id : int
        Who replied.
    arrays : dict of str to ndarray
        The named arrays of the reply.
    metrics : dict of str to float
        The numbers of the reply, each one declared.
    """

    partition_id: int
    arrays: dict[str, NDArray[Any]]
    metrics: dict[str, float]


def read_reply(
    message: Message,
    partition_id: int,
    due: Mapping[str, Due],
    metrics: Iterable[Metric],
) -> Reply:
    """Read a message after checking that it is what was asked for.

    Parameters
    ----------
    message : Message
        As it came.
    partition_id : int
        Who was asked.
    due : mapping of str to Due
        Every array that must be there, and no other.
    metrics : iterable of Metric
        Every number that may be there, and no other.

    Raises
    ------
    InvalidReplyError
        If the client failed, or the reply is not what was asked for.
    """
    if message.has_error():
        raise InvalidReplyError(error_reason(message))
    claimed = message.content.config_records.get("info", ConfigRecord()).get("partition-id")
    if claimed != partition_id:
        raise InvalidReplyError(f"claims to be partition {shortened(claimed)}")
    numbers = message.content.metric_records.get("metrics", MetricRecord())
    checked = checked_metrics(numbers, metrics)
    return Reply(partition_id, checked_arrays(arrays_of(message), due), checked)


def arrays_of(message: Message) -> Payload:
    """Return the arrays of a message, undecoded; none where it failed."""
    if message.has_error():
        return {}
    return message.content.array_records.get("arrays", ArrayRecord())


def empty(message: Message) -> None:
    """Let go of the arrays of a message that has been read.

    Flower's records refer to themselves, so that their bytes would else stay until the garbage
    collector comes by, which is seldom in a large process.
    """
    if not message.has_error() and "arrays" in message.content.array_records:
        message.content.array_records["arrays"].clear()


def checked_arrays(arrays: Payload, due: Mapping[str, Due]) -> dict[str, NDArray[Any]]:
    """Decode the arrays of a reply after checking that they are what was asked for.

    Names, shapes and sizes are compared before a byte is decoded, so that an oversized
    reply costs the server nothing more than its receipt.

    Parameters
    ----------
    arrays : mapping of str to Array
        Arrays as they came.
    due : mapping of str to Due
        Every array that must be there, and no other.

    Returns
    -------
    dict of str to ndarray
        The decoded arrays, all finite and within `LARGEST_NUMBER`.

    Raises
    ------
    InvalidReplyError
        If a name, shape or type differs, or a value is not finite or too large.
    """
    if arrays.keys() != due.keys():
        names = shortened(sorted(arrays))
        raise InvalidReplyError(f"has arrays {names} where {sorted(due)} are due")
    return {name: _checked_array(name, array, due[name]) for name, array in arrays.items()}


def _checked_array(name: str, array: Array, due: Due) -> NDArray[Any]:
    shape = tuple(array.shape)
    if not due.admits(shape):
        limit = "at most " if due.at_most else ""
        raise InvalidReplyError(
            f"{name} has shape {shortened(shape)} where {limit}{due.shape} is due"
        )
    # The bytes past the numbers are room for the header.
    if len(array.data) > np.dtype(due.dtype).itemsize * math.prod(shape) + 1024:
        raise InvalidReplyError(f"{name} is larger than its shape {shape} allows")
    try:
        values = array.numpy()
    # What numpy raises on bytes that somebody made up is nothing one could list.
    except Exception as error:
        raise InvalidReplyError(f"{name} cannot be decoded ({shortened(error)})") from error
    if not isinstance(values, np.ndarray):
        raise InvalidReplyError(f"{name} is no array")
    if values.shape != shape or values.dtype != due.dtype:
        raise InvalidReplyError(
            f"{name} holds {values.dtype} of shape {values.shape}, not {due.dtype} of {shape}"
        )
    if not np.isfinite(values).all():
        raise InvalidReplyError(f"{name} holds NaN or infinity")
    if values.size and max(float(values.max()), -float(values.min())) > LARGEST_NUMBER:
        raise InvalidReplyError(f"{name} holds a number beyond {LARGEST_NUMBER:g}")
    return values


def checked_metrics(numbers: Mapping[str, Any], allowed: Iterable[Metric]) -> dict[str, float]:
    """Return the numbers of a reply after checking that each was asked for.

    A metric may be missing: clients that guard their privacy report none.

    Raises
    ------
    InvalidReplyError
        If a name is not declared, or a value is no number in its range.
    """
    metrics = {metric.name: metric for metric in allowed}
    unknown = sorted(numbers.keys() - metrics.keys())
    if unknown:
        raise InvalidReplyError(f"reports {shortened(unknown)}, which nobody asked for")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidReplyError(f"{name} is {shortened(value)}, which is no number")
        if not metrics[name].low <= value <= metrics[name].high:
            raise InvalidReplyError(f"{name} = {value:g} is out of range")
    return {name: float(value) for name, value in numbers.items()}


def error_reason(message: Message) -> str:
    """Return why a client failed, in one line of at most `LONGEST_REASON` characters."""
    lines = (message.error.reason or "").strip().splitlines() or ["it gave no reason"]
    return textwrap.shorten(f"it failed: {lines[-1]}", LONGEST_REASON)


def shortened(value: object) -> str:
    """Return a foreign value as a text that fits a line of the log."""
    return textwrap.shorten(str(value), LONGEST_REASON)
