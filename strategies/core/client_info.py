"""What a client says of itself when the server first queries it."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MetricRecord

from strategies.core.records import record_of
from strategies.core.replies import InvalidReplyError, error_reason, shortened


@dataclass(frozen=True)
class ClientInfo:
    """What a client reported when the server first queried it.

    Attributes
    ----------
    partition_id : int
        n, the index of the client in every matrix.
    node_id : int
        Flower's address of the client.
    model : str
        Name of its architecture.
    num_examples : int
        D_n, the number of its private training samples.
    test_size, validation_size : int
        Sizes of its test and validation splits.
    public_hash, public_size : str, int
        Hash of its public set, and the number of its samples.
    num_clients : int
        Number of clients among which its data set is divided; 0 for a client with its own data.
    versions : str
        Versions of its packages, as `strategies.core.versions.as_text` writes them.
    classes_hash : str
        Hash of the names of its classes; empty if they have none.
    name : str
        Name of its silo for logs and tables; empty for none.
    """

    partition_id: int
    node_id: int
    model: str
    num_examples: int
    test_size: int = 0
    validation_size: int = 0
    public_hash: str = ""
    public_size: int = 0
    num_clients: int = 0
    versions: str = ""
    classes_hash: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """How the log calls it: ``client 3`` or ``client 3 (name)``."""
        return f"client {self.partition_id}" + (f" ({self.name})" if self.name else "")


def read_client(answer: Message) -> ClientInfo:
    """Read what a client reports about itself.

    Raises
    ------
    InvalidReplyError
        If it failed or its answer is incomplete.
    """
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
            public_size=int(str(info.get("public-size", 0))),
            num_clients=int(str(info.get("num-clients", 0))),
            versions=shortened(info.get("versions", "")),
            classes_hash=shortened(info.get("classes-hash", "")),
            name=shortened(info.get("name", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = shortened(repr(error))
        raise InvalidReplyError(f"node {node_id} gave an invalid answer ({reason})") from error
