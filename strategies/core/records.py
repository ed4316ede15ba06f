"""The records of a message: arrays, metrics and a config, each by its name.

Flower's own views collect all records of a kind whenever they are asked for.
"""

from collections.abc import Mapping
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

Payload = Mapping[str, Array]
"""Named arrays in encoded form. An array for several clients is one object."""


def record_of(message: Message, name: str, kind: type[Record]) -> Record:
    """Return a record of a message; an empty one if it has none of that name and kind."""
    found = message.content.get(name) if message.has_content() else None
    return found if isinstance(found, kind) else kind()


def arrays_of(message: Message) -> Payload:
    """Return the encoded arrays of a message; none if it failed."""
    return record_of(message, "arrays", ArrayRecord)


def release_arrays(message: Message) -> None:
    """Release the arrays of a message that has been read, which is in reference cycles."""
    record_of(message, "arrays", ArrayRecord).clear()
