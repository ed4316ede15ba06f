"""A grid that asks for replies soon.

Flower's own way to wait for replies looks every three seconds in a federation, which costs a
round of short messages more than its clients do.
"""

import math
import time
from collections.abc import Iterable

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedkd_flwr.grids.base import MessageGrid
from strategies.core.flower import Run

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 3.0
"""Seconds between two looks for replies over a network."""

SHARE_OF_WAITING = 0.05
"""By how much of the time that replies take a look may come late."""


class PromptGrid(MessageGrid):
    """A grid that looks for replies often at first, and the less the longer they take.

    Parameters
    ----------
    grid : Grid
        Flower's own.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._grid.run

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of all clients."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies that are there."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, until a timeout."""
        started_at = time.monotonic()
        deadline = math.inf if timeout is None else started_at + timeout
        sent = list(messages)
        missing = set(self.push_messages(sent))
        replies: list[Message] = []
        while missing:
            new = list(self.pull_messages(missing))
            replies += new
            missing -= {reply.metadata.reply_to_message_id for reply in new}
            now = time.monotonic()
            if now >= deadline:
                break
            if missing:
                # The last look is at the deadline, whatever the pause would be.
                time.sleep(min(self.pause(now - started_at), deadline - now))
        if self.duration and sent and sent[0].metadata.message_type == MessageType.TRAIN:
            # Clients train at the same time, so only the whole exchange tells how long it takes.
            self.duration.trained(time.monotonic() - started_at, len(sent), len(sent))
        return replies

    def pause(self, waited: float) -> float:
        """Return the seconds until the next look, after so many seconds of waiting."""
        return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, waited * SHARE_OF_WAITING))
