"""Who the clients are: meeting nodes, leaving out strangers, knowing who can be reached.

Clients are known by their **partition-id** n = 0..N-1; Flower's node ids are random keys and
appear nowhere outside this module and the messages themselves.
"""

import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from strategies.core.flower import log
from strategies.core.plan import RunPlan
from strategies.core.replies import (
    InvalidReplyError,
    TooFewRepliesError,
    error_reason,
    shortened,
)

LONGEST_PAUSE = 8
"""Rounds after which a node that could not say who it is is asked again, at the latest."""

LARGEST_SIZE = 10**9
"""More samples than a client can have."""


class OtherPublicSetError(InvalidReplyError):
    """A client that stays out of the run: it predicts on other samples than its peers."""


@dataclass(frozen=True)
class ClientInfo:
    """What a client said of itself when the server first met it.

    Attributes
    ----------
    partition_id : int
        n, the client's index in every matrix.
    node_id : int
        Flower's address of it.
    model : str
        Name of its architecture.
    num_examples : int
        D_n, the number of its private training samples.
    test_size, validation_size : int
        Samples of its test and of its validation split.
    public_hash : str
        Hash of its public set.
    num_clients : int
        Among how many clients the data set is divided of which it has a share; 0 for data of its
        own.
    """

    partition_id: int
    node_id: int
    model: str
    num_examples: int
    test_size: int = 0
    validation_size: int = 0
    public_hash: str = ""
    num_clients: int = 0


@dataclass
class Stranger:
    """A connected node that is no client yet, because it gave no valid answer.

    Attributes
    ----------
    failures : int
        How often it was asked in vain.
    next_round : float
        The round in which it is asked again; infinite if never.
    reasons : set of str
        What was wrong; each reason is logged once.
    """

    failures: int = 0
    next_round: float = 0
    reasons: set[str] = field(default_factory=set)


class Membership:
    """The clients of a run, as they come, go and come back.

    Parameters
    ----------
    plan : RunPlan
        N, the public set's hash, and how long to wait.
    needs_public_data : bool
        Whether a client with another public set has to stay out.

    Attributes
    ----------
    clients : dict of int to ClientInfo
        Everybody that was met, by partition-id.
    """

    def __init__(self, plan: RunPlan, needs_public_data: bool) -> None:
        self.plan = plan
        self.needs_public_data = needs_public_data
        self.clients: dict[int, ClientInfo] = {}
        self._strangers: dict[int, Stranger] = {}
        self._public_hash = plan.public_hash
        self._online: set[int] = set()

    def reachable(self, grid: Grid) -> list[int]:
        """Return the partition-ids of the connected clients, in ascending order."""
        online = set(grid.get_node_ids())
        return sorted(n for n, client in self.clients.items() if client.node_id in online)

    def meet(self, grid: Grid, server_round: int) -> None:
        """Ask nodes for their partition-id until they tell; wait for N nodes the first time.

        Raises
        ------
        TooFewRepliesError
            If fewer nodes are connected, or fewer can take part, than the run needs.
        """
        self._online = self._wait_for_nodes(grid)
        asked = self._nodes_to_ask(self._online, server_round)
        if not asked:
            return
        content = RecordDict({"config": ConfigRecord({"phase": "properties"})})
        questions = [Message(content, node_id, MessageType.QUERY) for node_id in asked]
        answers = list(grid.send_and_receive(questions, timeout=self.plan.round_timeout))
        self._public_hash = self._public_hash or most_common_hash(answers)
        known = set(self.clients)
        for answer in answers:
            self._meet(answer, server_round)
        for node_id in sorted(set(asked) - {answer.metadata.src_node_id for answer in answers}):
            self._leave_out(node_id, server_round, f"node {node_id} did not answer in time")
        for n in sorted(set(self.clients) - known) if known else []:
            log(INFO, "Client %d joined in round %d", n, server_round)
        self._require_clients()

    def _wait_for_nodes(self, grid: Grid) -> set[int]:
        wanted, is_first = self.plan.num_clients, not self.clients
        deadline = time.monotonic() + (self.plan.connect_timeout if is_first else 0)
        told = None
        while len(nodes := set(grid.get_node_ids())) < wanted:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if len(nodes) != told:
                log(
                    INFO, "Waiting for %d clients, %.0f s at most: %s", wanted, left, _so_far(nodes)
                )
                told = len(nodes)
            time.sleep(0.2)
        if is_first and len(nodes) < wanted:
            raise TooFewRepliesError(
                f"The run needs {wanted} clients and {len(nodes)} are connected: connect more, or "
                "set num-clients to their number, or to 0 for as many as are connected."
            )
        return nodes

    def _nodes_to_ask(self, nodes: set[int], server_round: int) -> list[int]:
        """Return the nodes that are no clients, without those that failed a short time ago."""
        unknown = nodes - {client.node_id for client in self.clients.values()}
        strangers = self._strangers
        return sorted(
            n for n in unknown if n not in strangers or strangers[n].next_round <= server_round
        )

    def _meet(self, answer: Message, server_round: int) -> None:
        """Register one client, or note why it cannot take part."""
        node_id = answer.metadata.src_node_id
        try:
            client = read_client(answer)
            self._check_client(client)
        except OtherPublicSetError as error:
            self._leave_out(node_id, math.inf, str(error))
        except InvalidReplyError as error:
            self._leave_out(node_id, server_round, str(error))
        else:
            self.clients[client.partition_id] = client
            self._strangers.pop(node_id, None)

    def _leave_out(self, node_id: int, server_round: float, reason: str) -> None:
        """Note that a node was asked in vain; it is asked again after 1, 2, 4, 8, 8, … rounds."""
        stranger = self._strangers.setdefault(node_id, Stranger())
        stranger.next_round = server_round + min(2**stranger.failures, LONGEST_PAUSE)
        stranger.failures += 1
        if reason not in stranger.reasons:
            log(WARNING, "Left out: %s", reason)
        stranger.reasons.add(reason)

    def _check_client(self, client: ClientInfo) -> None:
        n = client.partition_id
        if not 0 <= n < self.plan.num_clients:
            raise InvalidReplyError(f"partition {n} is outside 0..{self.plan.num_clients - 1}")
        if not 1 <= client.num_examples <= LARGEST_SIZE:
            raise InvalidReplyError(f"client {n} has {client.num_examples} training samples")
        if client.num_clients not in (0, self.plan.num_clients):
            raise InvalidReplyError(
                f"client {n} has a share of data divided among {client.num_clients} clients, and "
                f"the run has {self.plan.num_clients}: connect as many nodes as num-partitions "
                "says in their configs, or set it to the number of those that take part"
            )
        known = self.clients.get(n)
        if known and known.node_id in self._online:
            raise InvalidReplyError(f"partition {n} is already held by another node")
        if self.needs_public_data and client.public_hash != self._public_hash:
            raise OtherPublicSetError(
                f"client {n} holds another public set (hash {client.public_hash[:12]}) than "
                f"the run's ({self._public_hash[:12]})"
            )

    def _require_clients(self) -> None:
        if len(self.clients) >= self.plan.min_replies:
            return
        reasons = [reason for s in self._strangers.values() for reason in sorted(s.reasons)]
        first = next(iter(reasons), "too few have another partition-id")
        raise TooFewRepliesError(
            f"{len(self.clients)} clients can take part and min-replies is "
            f"{self.plan.min_replies}; the first that cannot: {first}."
        )


def _so_far(nodes: Collection[int]) -> str:
    return f"{len(nodes)} are connected; num-clients=0 takes as many as there are"


def read_client(answer: Message) -> ClientInfo:
    """Read what a client says of itself.

    Raises
    ------
    InvalidReplyError
        If it failed, or left out what is needed.
    """
    node_id = answer.metadata.src_node_id
    if answer.has_error():
        raise InvalidReplyError(f"node {node_id}, {error_reason(answer)}")
    try:
        info = answer.content.config_records["info"]
        metrics = answer.content.metric_records["metrics"]
        return ClientInfo(
            partition_id=int(str(info["partition-id"])),
            node_id=node_id,
            model=shortened(info["model"]),
            num_examples=int(metrics["num-examples"]),  # type: ignore[arg-type]
            test_size=int(metrics["test-size"]),  # type: ignore[arg-type]
            validation_size=int(metrics["validation-size"]),  # type: ignore[arg-type]
            public_hash=str(info.get("public-hash", "")),
            num_clients=int(str(info.get("num-clients", 0))),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = shortened(repr(error))
        raise InvalidReplyError(f"node {node_id} does not say who it is ({reason})") from error


def most_common_hash(answers: Iterable[Message]) -> str:
    """Return the hash of the public set that most clients hold; empty if none tells."""
    hashes = [
        str(answer.content.config_records["info"].get("public-hash", ""))
        for answer in answers
        if not answer.has_error() and "info" in answer.content.config_records
    ]
    return max(sorted(set(hashes)), key=hashes.count, default="")
