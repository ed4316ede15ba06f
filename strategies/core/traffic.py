"""Numbers and bytes that crossed the network."""

import math
from dataclasses import dataclass, field

from flwr.app import Array

from strategies.core.records import Payload

MOST_DIMENSIONS = 64
"""NumPy's limit for the dimensions of an array."""


@dataclass
class Traffic:
    """Numbers and bytes that crossed the network in a round, in all and by client.

    Evaluation messages are not counted, since a deployment chooses when to evaluate. They are
    counted for new clients, which may receive nothing else. `numbers_down_broadcast` counts arrays
    for several clients once.
    """

    numbers_up: int = 0
    bytes_up: int = 0
    numbers_down: int = 0
    bytes_down: int = 0
    numbers_down_broadcast: int = 0
    by_client: dict[int, dict[str, int]] = field(default_factory=dict)
    # References to the arrays prevent their ids from being reused.
    _broadcast: dict[int, Array] = field(default_factory=dict)

    def count_down(self, partition_id: int, payload: Payload) -> None:
        """Count a message to one client."""
        numbers, size = count_numbers(payload), count_bytes(payload)
        self.numbers_down += numbers
        self.bytes_down += size
        for array in payload.values():
            if id(array) not in self._broadcast:
                self._broadcast[id(array)] = array
                self.numbers_down_broadcast += math.prod(array.shape)
        self._client(partition_id)["numbers_down"] += numbers
        self._client(partition_id)["bytes_down"] += size

    def count_up(self, partition_id: int, arrays: Payload) -> None:
        """Count a reply of one client, valid or not."""
        numbers, size = count_numbers(arrays), count_bytes(arrays)
        self.numbers_up += numbers
        self.bytes_up += size
        self._client(partition_id)["numbers_up"] += numbers
        self._client(partition_id)["bytes_up"] += size

    def let_go(self) -> None:
        """Release all arrays; shared arrays are counted again from now on."""
        self._broadcast.clear()

    def totals(self) -> dict[str, int]:
        """Return the columns of the round's row."""
        return {
            "numbers_up": self.numbers_up,
            "numbers_down": self.numbers_down,
            "numbers_down_broadcast": self.numbers_down_broadcast,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def _client(self, partition_id: int) -> dict[str, int]:
        empty = {"numbers_up": 0, "numbers_down": 0, "bytes_up": 0, "bytes_down": 0}
        return self.by_client.setdefault(partition_id, empty)


def count_numbers(payload: Payload) -> int:
    """Return the number of entries of a payload, limited by its actual size."""
    return sum(_numbers_in(array) for array in payload.values())


def _numbers_in(array: Array) -> int:
    """Return the number of entries of an array; 0 if its shape is invalid."""
    shape = array.shape
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        return 0
    return min(math.prod(shape), len(array.data))


def count_bytes(payload: Payload) -> int:
    """Return the size of a payload in bytes."""
    return sum(len(array.data) for array in payload.values())
