"""The order of messages in Flower's simulation: who takes longest begins first.

Ray's processes serve one message after the other. Where a large network is the last to begin, all
other processes wait for it. Results do not depend on the order.
"""

import itertools
import math
import time
from collections.abc import Iterable, Iterator

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.superlink.grid import InMemoryGrid

PAUSE = 0.05
"""Seconds between two looks; Flower's own are 0.1 apart."""

LONGEST_WAIT = 2.0
"""Seconds after which messages are sent though those before them still lie there."""


class LongestFirstGrid(Grid):
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
        self._grid = grid
        self._seconds: dict[int, float] = {}

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message, as Flower's older API does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of all clients."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, those that take longest first."""
        message_ids: list[str] = []
        sent: list[Message] = []
        for equals in self._longest_first(messages):
            _wait_until_taken(sent)
            message_ids += self._grid.push_messages(equals)
            sent = equals
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies that are there, and note how long clients took."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            seconds = _seconds_of(reply)
            if seconds is not None:
                self._seconds[reply.metadata.src_node_id] = seconds
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, until a timeout."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        missing = set(self.push_messages(messages))
        replies: list[Message] = []
        while missing and time.monotonic() < deadline:
            new = list(self.pull_messages(missing))
            replies += new
            missing -= {reply.metadata.reply_to_message_id for reply in new}
            if missing:
                time.sleep(PAUSE)
        return replies

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
