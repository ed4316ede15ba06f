"""Arrays and numbers of messages: how they are encoded, decoded and checked.

Nothing in a reply is trusted. One that differs from what was requested is dropped with the reason.
"""

import math
import re
import textwrap
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

from strategies.core.declarations import Sent
from strategies.core.versions import installed_versions, refusal

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

Payload = Mapping[str, Array]
"""Named arrays in encoded form. An array for several clients is one object."""


def record_of(message: Message, name: str, kind: type[Record]) -> Record:
    """Return a record of a message; an empty one if it has none of that name and kind.

    Flower's own views collect all records of a kind whenever they are asked for.
    """
    found = message.content.get(name) if message.has_content() else None
    return found if isinstance(found, kind) else kind()


def arrays_of(message: Message) -> Payload:
    """Return the encoded arrays of a message; none if it failed."""
    return record_of(message, "arrays", ArrayRecord)


Arrays = Mapping[str, NDArray[Any]]  # named arrays of a message
LONGEST_REASON = 200  # characters of a failure's reason that are logged and recorded

LONGEST_READ = 4 * LONGEST_REASON
"""Characters of a received text that are shortened to these; shortening a long text is slow."""

LARGEST_NUMBER = 1e8
"""Largest magnitude in the arrays of a reply, far beyond realistic weights and logits."""

LARGEST_LOSS = 1e6  # largest magnitude of a metric that enters a mean


class InvalidReplyError(ValueError):
    """A reply that must not enter the aggregation; the message gives the reason."""


class TooFewRepliesError(RuntimeError):
    """Too few clients answered to continue."""


@dataclass(frozen=True)
class ExpectedArray:
    """Specification of an array of a reply."""

    shape: tuple[int, ...]
    """Its shape."""
    dtype: str = "float32"
    """NumPy's name of its data type."""
    at_most: bool = False
    """Whether it may have fewer rows than `shape`, if only the client knows their number."""

    def parts(self, name: str) -> Mapping[str, "ExpectedArray"]:
        """Return the specification of the arrays in which it is sent: by default itself."""
        return {name: self}

    def value(self, name: str, parts: Arrays) -> NDArray[Any]:
        """Return the array from those in which it was sent."""
        return parts[name]

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a shape meets the specification."""
        if not self.at_most or len(shape) != len(self.shape):
            return shape == self.shape
        return 0 <= shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]


@dataclass(frozen=True)
class Metric(Sent):
    """A number that the clients of a method report, recorded per client and round.

    Its name is in kebab case, and its column has underscores. What `Sent` says of it counts too.
    """

    averaged: bool = True
    """Whether the row of the round has the mean over clients, as ``NAME_mean``."""
    low: float = -LARGEST_LOSS
    high: float = LARGEST_LOSS
    """Allowed range, both ends included."""
    required: bool = field(default=False, kw_only=True)

    @property
    def column(self) -> str:
        """Its column in the run's tables."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Reply:
    """A client's reply that passed the checks."""

    partition_id: int
    """The client that replied."""
    arrays: dict[str, NDArray[Any]]
    """The named arrays of the reply."""
    metrics: dict[str, float]
    """The declared numbers of the reply."""
    answers: bytes = b""
    """Which test images the model gets right, see `strategies.core.masks`; empty for none."""


def read_reply(
    message: Message, partition_id: int, due: Mapping[str, ExpectedArray], metrics: Iterable[Metric]
) -> Reply:
    """Read a reply after checking its sender, versions, arrays and metrics."""
    if message.has_error():
        raise InvalidReplyError(error_reason(message))
    info = record_of(message, "info", ConfigRecord)
    if (claimed := info.get("partition-id")) != partition_id:
        raise InvalidReplyError(f"claims to be partition {shortened(claimed)}")
    if reason := refusal(installed_versions(), shortened(info.get("versions", ""))):
        raise InvalidReplyError(reason)
    numbers = record_of(message, "metrics", MetricRecord)
    checked = checked_metrics(numbers, metrics)
    answers = info.get("answers", b"")
    if not isinstance(answers, bytes):
        raise InvalidReplyError(f"answers are {shortened(answers)}, which are not bytes")
    return Reply(partition_id, checked_arrays(arrays_of(message), due), checked, answers)


class Encodings:
    """Cache of encoded arrays; an entry lives as long as its source array."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[NDArray[Any]], Array]] = {}

    def of(self, arrays: Arrays) -> Payload:
        """Encode arrays for the network; an array for several clients is encoded once."""
        return {name: self._encoded(required(name, array)) for name, array in arrays.items()}

    def _encoded(self, array: NDArray[Any]) -> Array:
        key = id(array)
        if key not in self._kept:
            # A weak reference to self, so that a long-lived array does not keep the cache alive.
            forget = partial(_forget, weakref.ref(self), key)
            array.flags.writeable = False  # later messages of the round would have the old values
            self._kept[key] = weakref.ref(array, forget), Array(array)
        return self._kept[key][1]


def _forget(encodings: "weakref.ref[Encodings]", key: int, _gone: object) -> None:
    """Remove a cache entry: the id of a deleted array may be reused."""
    if kept := encodings():
        kept._kept.pop(key)


def required(name: str, value: Any) -> NDArray[Any]:
    """Return what a method sends; refuse what is no array of numbers. Raises `TypeError`."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or getattr(dtype, "kind", "f") not in "biuf":
        kind = f"a {type(value).__name__}" if dtype is None else f"an array of {dtype}"
        raise TypeError(f"{name} is {kind}; a message holds arrays of numbers: numpy.asarray(...)")
    array: NDArray[Any] = value
    return array


def encoded(arrays: Arrays) -> Payload:
    """Encode arrays for the network."""
    return {name: Array(required(name, array)) for name, array in arrays.items()}


def decoded(payload: Payload) -> dict[str, NDArray[Any]]:
    """Decode arrays of the server; refuse NaN and infinity, which a training would spread."""
    arrays = {name: array.numpy() for name, array in payload.items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(
                f"the server sent {name} with NaN or infinity; look at what the method's aggregate "
                "and train_payload compute"
            )
    return arrays


def checked_arrays(arrays: Payload, due: Mapping[str, ExpectedArray]) -> dict[str, NDArray[Any]]:
    """Decode the arrays of a reply after checking names, shapes, types and values against `due`.

    Names, shapes and sizes are compared before decoding, so that an oversized reply costs the
    server no more than receiving it.
    """
    if wrong := [name for name, array in due.items() if not isinstance(array, ExpectedArray)]:
        raise TypeError(
            f"expected_arrays declares {wrong[0]} as a {type(due[wrong[0]]).__name__}; write "
            "ExpectedArray(shape, dtype)"
        )
    sent = {part: spec for name, array in due.items() for part, spec in array.parts(name).items()}
    if arrays.keys() != sent.keys():
        names = shortened(sorted(arrays))
        raise InvalidReplyError(f"has arrays {names} instead of {sorted(sent)}")
    parts = {name: _checked_array(name, array, sent[name]) for name, array in arrays.items()}
    return {name: array.value(name, parts) for name, array in due.items()}


def _checked_array(name: str, array: Array, due: ExpectedArray) -> NDArray[Any]:
    shape = tuple(array.shape)
    if not due.admits(shape):
        limit = "at most " if due.at_most else ""
        raise InvalidReplyError(
            f"{name} has shape {shortened(shape)} instead of {limit}{due.shape}"
        )
    if array.dtype != due.dtype:
        raise InvalidReplyError(f"{name} holds {shortened(array.dtype)}, not {due.dtype}")
    # The extra bytes are for the header.
    if len(array.data) > np.dtype(due.dtype).itemsize * math.prod(shape) + 1024:
        raise InvalidReplyError(f"{name} is larger than its shape {shape} allows")
    try:
        values = array.numpy()
    # NumPy may raise anything on malformed bytes.
    except Exception as error:
        raise InvalidReplyError(f"{name} cannot be decoded ({shortened(error)})") from error
    if not isinstance(values, np.ndarray):
        raise InvalidReplyError(f"{name} is not an array")
    if values.shape != shape or values.dtype != due.dtype:
        raise InvalidReplyError(
            f"{name} holds {values.dtype} of shape {values.shape}, not {due.dtype} of {shape}"
        )
    if not np.isfinite(values).all():
        raise InvalidReplyError(f"{name} holds NaN or infinity")
    if values.size and max(float(values.max()), -float(values.min())) > LARGEST_NUMBER:
        raise InvalidReplyError(f"{name} holds a number beyond {LARGEST_NUMBER:g}")
    values.flags.writeable = False  # the state of a method may keep it
    return values


def checked_metrics(numbers: Mapping[str, Any], allowed: Iterable[Metric]) -> dict[str, float]:
    """Return the numbers of a reply after checking that each was requested and is in its range."""
    metrics = {metric.name: metric for metric in allowed}
    unknown = sorted(numbers.keys() - metrics.keys())
    if unknown:
        raise InvalidReplyError(
            f"reports {shortened(unknown)}, which was not requested; the method's record declares "
            "metrics in train_metrics"
        )
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidReplyError(f"{name} is {shortened(value)}, which is not a number")
        if not metrics[name].low <= value <= metrics[name].high:
            raise InvalidReplyError(f"{name} = {value:g} is out of range")
    return {name: float(value) for name, value in numbers.items()}


def error_reason(message: Message) -> str:
    """Return why a client failed, in one line of at most `LONGEST_REASON` characters."""
    reason = (message.error.reason or "")[-LONGEST_READ:]
    lines = reason.strip().splitlines() or ["it gave no reason"]
    return textwrap.shorten(f"it failed: {lines[-1]}", LONGEST_REASON)


def shortened(value: object) -> str:
    """Return a received value as text that fits in one line of the log."""
    text = " ".join(str(value)[:LONGEST_READ].split())
    # A run may begin with the names and hashes of 100,000 clients, and shortening is slow.
    return text if len(text) <= LONGEST_REASON else textwrap.shorten(text, LONGEST_REASON)


# ---- What a client says of itself when the server first queries it ----------------------

NAME = re.compile(r"[\w.-]([\w. -]{0,38}[\w.-])?")
"""A silo's name: up to 40 letters, digits, dots, dashes, underscores and spaces within."""


def valid_name(name: object) -> bool:
    """Return whether a silo may be called so."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and name.isprintable()


@dataclass(frozen=True)
class ClientInfo:
    """What a client reported when the server first queried it; `node_id` is Flower's address.

    `num_clients` is 0 for a client with its own data; hashes and names are empty for none.
    `public_size` is the number of its public samples.
    """

    partition_id: int
    node_id: int
    model: str
    num_examples: int
    test_size: int = 0
    validation_size: int = 0
    public_hash: str = ""
    public_size: int = 0
    num_clients: int = 0
    versions: str = ""
    classes_hash: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """How the log calls it: ``client 3`` or ``client 3 (name)``."""
        return f"client {self.partition_id}" + (f" ({self.name})" if self.name else "")


def read_client(answer: Message) -> ClientInfo:
    """Read what a client reports about itself; refuse a failed or incomplete answer."""
    node_id = answer.metadata.src_node_id
    if answer.has_error():
        raise InvalidReplyError(f"node {node_id}, {error_reason(answer)}")
    try:
        info = record_of(answer, "info", ConfigRecord)
        metrics = record_of(answer, "metrics", MetricRecord)
        return ClientInfo(
            partition_id=int(str(info["partition-id"])),
            node_id=node_id,
            model=shortened(info["model"]),
            num_examples=int(metrics["num-examples"]),  # type: ignore[arg-type]
            test_size=int(metrics["test-size"]),  # type: ignore[arg-type]
            validation_size=int(metrics["validation-size"]),  # type: ignore[arg-type]
            public_hash=shortened(info.get("public-hash", "")),
            public_size=int(str(info.get("public-size", 0))),
            num_clients=int(str(info.get("num-clients", 0))),
            versions=shortened(info.get("versions", "")),
            classes_hash=shortened(info.get("classes-hash", "")),
            name=shortened(info.get("name", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = shortened(repr(error))
        raise InvalidReplyError(f"node {node_id} gave an invalid answer ({reason})") from error
