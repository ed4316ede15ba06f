"""The base class of this package's grids, and their estimate of a run's duration."""

from collections.abc import Mapping
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedkd_flwr.memory import Memory
from strategies.core.flower import log

SHORTEST_SAID = 60.0
"""Seconds. No estimate is logged for shorter runs."""


class DurationEstimate:
    """Says once how long a run will take, if that is more than a minute.

    The estimate is rough. It assumes that all clients take as long as those that replied first,
    and leaves out evaluations and further exchanges of a round.

    Parameters
    ----------
    rounds : int
        Rounds that the run still has to do.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._is_made = False

    def trained(self, seconds: float, done: int, total: int) -> None:
        """Estimate the duration, the first time that clients have trained.

        Parameters
        ----------
        seconds : float
            Time since the first exchange began.
        done : int
            Clients that have trained so far, at least one.
        total : int
            Clients that train in the exchange.
        """
        if self._is_made:
            return
        self._is_made = True
        estimate = seconds / done * total * self._rounds
        if estimate > SHORTEST_SAID:
            rounds, clients = _counted(self._rounds, "round"), _counted(total, "client")
            log(WARNING, "This run takes about %s: %s of %s.", duration(estimate), rounds, clients)


def duration(seconds: float) -> str:
    """Return a duration in words, rounded to minutes, or to hours from two hours on."""
    minutes = round(seconds / 60)
    return _counted(minutes, "minute") if minutes < 120 else _counted(round(minutes / 60), "hour")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class MessageGrid(Grid):
    """A grid whose messages are built by Flower's newer API."""

    is_federation = False
    """Whether the clients are on nodes of a federation, which have the data; else they are here."""

    duration: DurationEstimate | None = None
    """Is informed when clients have trained, if a run set it."""

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
