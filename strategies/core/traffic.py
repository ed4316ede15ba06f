"""Numbers and bytes that crossed the network."""

import math
from dataclasses import dataclass, field

from flwr.app import Array

from strategies.core.replies import Payload

MOST_DIMENSIONS = 64
"""Of an array in NumPy."""


@dataclass
class Traffic:
    """Numbers and bytes that crossed the network in one round to train.

    What is sent to evaluate is not counted: a deployment evaluates when it likes. Of clients that
    come after the training it is, since that is what they are sent at all.

    Attributes
    ----------
    numbers_up, bytes_up : int
        From clients to server.
    numbers_down, bytes_down : int
        From server to clients, each client counted.
    numbers_down_broadcast : int
        From server to clients, arrays that clients share counted once.
    by_client : dict of int to dict
        The same numbers for each client, by partition-id.
    """

    numbers_up: int = 0
    bytes_up: int = 0
    numbers_down: int = 0
    bytes_down: int = 0
    numbers_down_broadcast: int = 0
    by_client: dict[int, dict[str, int]] = field(default_factory=dict)
    # Holding the arrays themselves keeps their ids from being given to new arrays.
    _broadcast: dict[int, Array] = field(default_factory=dict)

    def count_down(self, partition_id: int, payload: Payload) -> None:
        """Count what one client is sent."""
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
        """Count what one client sent, valid or not."""
        numbers, size = count_numbers(arrays), count_bytes(arrays)
        self.numbers_up += numbers
        self.bytes_up += size
        self._client(partition_id)["numbers_up"] += numbers
        self._client(partition_id)["bytes_up"] += size

    def let_go(self) -> None:
        """Hold on to no array any more: what is shared from now on counts anew."""
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
    """Return how many numbers the arrays of a payload hold, whatever shape they claim."""
    return sum(_numbers_in(array) for array in payload.values())


def _numbers_in(array: Array) -> int:
    """Return how many numbers an array holds; none where its shape is no array's."""
    shape = array.shape
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        return 0
    return min(math.prod(shape), len(array.data))


def count_bytes(payload: Payload) -> int:
    """Return how many bytes the arrays of a payload take on the wire."""
    return sum(len(array.data) for array in payload.values())
