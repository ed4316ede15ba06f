"""Grids: the base of this package's, and the ones that poll quickly.

Flower's own grid polls every three seconds in a federation. In rounds of short messages that takes
longer than the clients' work.
"""

import math
import time
from collections.abc import Iterable, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedkd_flwr.clients.tracebacks import stop_at_reported_failures
from fedkd_flwr.memory import Memory
from strategies.core.flower import NodeInfo, Run


class MessageGrid(Grid):
    """A grid whose messages are built by Flower's newer API."""

    is_federation = False
    """Whether the clients are on nodes of a federation, which have the data; else they are here."""

    def memories(self) -> Mapping[int, Memory]:
        """Return the memories of clients in this process by partition-id; of others, none."""
        return {}

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message. Flower's older API calls this."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 3.0  # seconds between two polls for replies over a network
SHARE_OF_WAITING = 0.05  # pause between two polls, as a share of the time waited so far
SIMULATION_PAUSE = 0.05  # seconds between two polls within this process


class FastPollingGrid(MessageGrid):
    """A grid that polls for replies often at first, and less often the longer they take."""

    is_federation = True

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._waited: dict[int, float] = {}

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

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the SuperLink knows of each node, such as its public key."""
        return self._grid.get_nodes()

    @property
    def waited(self) -> dict[int, float]:
        """Seconds from the start of the last exchange to the reply of each node, by node id."""
        return self._waited

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the available replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, until a timeout."""
        started_at = time.monotonic()
        deadline = math.inf if timeout is None else started_at + timeout
        self._waited = {}
        missing = set(self.push_messages(messages))
        replies: list[Message] = []
        while missing:
            new = list(self.pull_messages(missing))
            replies += new
            missing -= {reply.metadata.reply_to_message_id for reply in new}
            now = time.monotonic()
            self._waited |= {reply.metadata.src_node_id: now - started_at for reply in new}
            if now >= deadline:
                break
            if missing:
                # The last poll is at the deadline, however long the pause would be.
                time.sleep(min(self.pause(now - started_at), deadline - now))
        return replies

    def pause(self, waited: float) -> float:
        """Return the seconds until the next poll, after some seconds of waiting."""
        return min(LONGEST_PAUSE, max(SHORTEST_PAUSE, waited * SHARE_OF_WAITING))


class SimulationGrid(FastPollingGrid):
    """A grid of clients in Ray's processes, which Flower reaches without a network."""

    is_federation = False

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the available replies."""
        replies = list(super().pull_messages(message_ids))
        stop_at_reported_failures(replies)
        return replies

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes without keys: a simulation draws new ones each time."""
        return Grid.get_nodes(self)

    @property
    def waited(self) -> dict[int, float]:
        """Nothing: messages wait for each other's clients."""
        return {}

    def pause(self, waited: float) -> float:
        """Return the seconds until the next poll."""
        return SIMULATION_PAUSE
