"""What a client says of itself when the server first queries it."""

import re
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MetricRecord

from strategies.core.replies import InvalidReplyError, error_reason, record_of, shortened

NAME = re.compile(r"[\w.-]([\w. -]{0,38}[\w.-])?")
"""A silo's name: up to 40 letters, digits, dots, dashes, underscores and spaces within."""


def valid_name(name: object) -> bool:
    """Return whether a silo may be called so."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and name.isprintable()


@dataclass(frozen=True)
class ClientInfo:
    """What a client reported when the server first queried it; `node_id` is Flower's address.

    `num_clients` is 0 for a client with its own data; hashes and names are empty for none.
    """

    partition_id: int
    node_id: int
    model: str
    num_examples: int
    test_size: int = 0
    validation_size: int = 0
    public_hash: str = ""
    num_clients: int = 0
    versions: str = ""
    classes_hash: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """How the log calls it: ``client 3`` or ``client 3 (name)``."""
        return f"client {self.partition_id}" + (f" ({self.name})" if self.name else "")


def read_client(answer: Message) -> ClientInfo:
    """Read what a client reports about itself; refuse a failed or incomplete answer."""
    node_id = answer.metadata.src_node_id
    if answer.has_error():
        raise InvalidReplyError(f"node {node_id}, {error_reason(answer)}")
    try:
        info = record_of(answer, "info", ConfigRecord)
        metrics = record_of(answer, "metrics", MetricRecord)
        return ClientInfo(
            partition_id=int(str(info["partition-id"])),
            node_id=node_id,
            model=shortened(info["model"]),
            num_examples=int(metrics["num-examples"]),  # type: ignore[arg-type]
            test_size=int(metrics["test-size"]),  # type: ignore[arg-type]
            validation_size=int(metrics["validation-size"]),  # type: ignore[arg-type]
            public_hash=shortened(info.get("public-hash", "")),
            num_clients=int(str(info.get("num-clients", 0))),
            versions=shortened(info.get("versions", "")),
            classes_hash=shortened(info.get("classes-hash", "")),
            name=shortened(info.get("name", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = shortened(repr(error))
        raise InvalidReplyError(f"node {node_id} gave an invalid answer ({reason})") from error
