"""The order of messages in Flower's simulation: who takes longest begins first.

Ray's processes serve one message after the other. Where a large network is the last to begin, all
other processes wait for it. Results do not depend on the order.
"""

import itertools
import math
import time
from collections.abc import Iterable, Iterator

from flwr.app import ConfigRecord, Message

from fedkd_flwr.grids.prompt import PromptGrid
from strategies.core.flower import InMemoryGrid

PAUSE = 0.05
"""Seconds between two looks; Flower's own are 0.1 apart."""

LONGEST_WAIT = 2.0
"""Seconds after which messages are sent though those before them still lie there."""


class LongestFirstGrid(PromptGrid):
    """A simulation's grid that sends messages in the order of what they took the last time.

    Flower hands out what lies there by partition-id, in whatever order it came. So messages to
    clients that take twice as long as others, and more than a second, are sent first, and the
    others once these are taken; each such step costs about a tenth of a second.

    Parameters
    ----------
    grid : InMemoryGrid
        Flower's own.
    """

    def __init__(self, grid: InMemoryGrid) -> None:
        super().__init__(grid)
        self._seconds: dict[int, float] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, those that take longest first."""
        message_ids: list[str] = []
        sent: list[Message] = []
        for equals in self._longest_first(messages):
            _wait_until_taken(sent)
            message_ids += super().push_messages(equals)
            sent = equals
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies that are there, and note how long clients took."""
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            seconds = _seconds_of(reply)
            if seconds is not None:
                self._seconds[reply.metadata.src_node_id] = seconds
        return replies

    def pause(self, waited: float) -> float:
        """Return the seconds until the next look: Flower's grid is in this process."""
        return PAUSE

    def _longest_first(self, messages: Iterable[Message]) -> Iterator[list[Message]]:
        """Group messages by how often what they took can be halved until it is a second."""

        def halvings(message: Message) -> int:
            seconds = self._seconds.get(message.metadata.dst_node_id, 0.0)
            return max(0, math.ceil(math.log2(max(seconds, 1.0))))

        ordered = sorted(messages, key=halvings, reverse=True)
        return (list(equals) for _, equals in itertools.groupby(ordered, key=halvings))


def _wait_until_taken(messages: Iterable[Message]) -> None:
    """Wait until Flower has handed messages to the processes."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not all(message.metadata.delivered_at for message in messages):
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE)


def _seconds_of(reply: Message) -> float | None:
    """Return how long a client says that it trained; None where it does not."""
    if reply.has_error():
        return None
    told = reply.content.config_records.get("info", ConfigRecord()).get("seconds")
    return told if isinstance(told, float) else None
