"""The order of messages in Flower's simulation: the slowest clients start first.

Ray's processes handle one message after another. If a large network starts last, all other
processes wait for it. Results do not depend on the order.
"""

import itertools
import math
import time
from collections.abc import Iterable, Iterator

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedkd_flwr.grids.fast_polling import FastPollingGrid
from strategies.core.flower import InMemoryGrid, NodeInfo
from strategies.core.records import record_of

PAUSE = 0.05
"""Seconds between two polls. Flower's own interval is 0.1."""

LONGEST_WAIT = 2.0
"""Seconds after which messages are sent although earlier ones were not taken yet."""


class LongestFirstGrid(FastPollingGrid):
    """A simulation's grid that sends messages to the slowest clients first.

    Flower distributes waiting messages by partition-id, whatever their order. So messages to
    clients that took twice as long as others, and more than a second, are sent first. The others
    are sent once these were taken. Each such step costs about a tenth of a second.

    Parameters
    ----------
    grid : InMemoryGrid
        Flower's own.
    """

    is_federation = False

    def __init__(self, grid: InMemoryGrid) -> None:
        super().__init__(grid)
        self._seconds: dict[int, float] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes without keys: a simulation draws new ones each time."""
        return Grid.get_nodes(self)

    @property
    def waited(self) -> dict[int, float]:
        """Nothing: messages wait for each other's clients."""
        return {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, to the slowest clients first."""
        message_ids: list[str] = []
        sent: list[Message] = []
        for equals in self._longest_first(messages):
            _wait_until_taken(sent)
            message_ids += super().push_messages(equals)
            sent = equals
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the available replies, and note how long clients took."""
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            seconds = _seconds_of(reply)
            if seconds is not None:
                self._seconds[reply.metadata.src_node_id] = seconds
        return replies

    def pause(self, waited: float) -> float:
        """Return the seconds until the next poll. Flower's grid is in this process."""
        return PAUSE

    def _longest_first(self, messages: Iterable[Message]) -> Iterator[list[Message]]:
        """Group messages by the binary logarithm of their last duration in seconds."""

        def halvings(message: Message) -> int:
            seconds = self._seconds.get(message.metadata.dst_node_id, 0.0)
            return max(0, math.ceil(math.log2(max(seconds, 1.0))))

        ordered = sorted(messages, key=halvings, reverse=True)
        return (list(equals) for _, equals in itertools.groupby(ordered, key=halvings))


def _wait_until_taken(messages: Iterable[Message]) -> None:
    """Wait until Flower has passed messages to the processes."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not all(message.metadata.delivered_at for message in messages):
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE)


def _seconds_of(reply: Message) -> float | None:
    """Return the training time that a client reports, or None."""
    told = record_of(reply, "info", ConfigRecord).get("seconds")
    return told if isinstance(told, float) else None
