"""The base class of this package's grids."""

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedkd_flwr.grids.duration import DurationEstimate


class MessageGrid(Grid):
    """A grid whose messages are built by Flower's newer API."""

    is_federation = False
    """Whether the clients are on nodes of a federation, which have the data; else they are here."""

    duration: DurationEstimate | None = None
    """Is informed when clients have trained, if a run set it."""

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
