"""What all grids of this package share."""

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class MessageGrid(Grid):
    """A grid of messages that are built as Flower's newer API builds them."""

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
