"""Membership of a run: query new nodes, exclude invalid ones, list the reachable clients.

Clients are identified by their **partition-id** n = 0..N-1. Flower's node ids are random keys and
are used only in this module and in messages.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.core.exchange import Stragglers
from strategies.core.flower import log
from strategies.core.mixing import upper_limit
from strategies.core.plan import RunPlan
from strategies.core.replies import (
    Arrays,
    ClientInfo,
    InvalidReplyError,
    TooFewRepliesError,
    read_client,
    valid_name,
)
from strategies.core.versions import difference, installed_versions, refusal

KEYS = "members/keys"
"""Name in the state: SHA-256 of the key of each partition, (N, 32) uint8, zeros for none."""


class Owners:
    """The public keys of nodes that partitions belong to: whoever took one first has it.

    A SuperLink checks each message against the key of its node. With registered keys a node keeps
    its key over restarts, else it draws one at each start. Grids without keys bind nothing.
    """

    def __init__(self, num_partitions: int) -> None:
        self._num_partitions = num_partitions
        self._keys: dict[int, str] = {}
        self._of_nodes: dict[int, str] = {}

    def look_up(self, grid: Grid) -> None:
        """Ask for the public keys of the connected nodes."""
        if self._num_partitions:
            self._of_nodes = {
                node.node_id: hashlib.sha256(node.public_key).hexdigest()
                for node in grid.get_nodes()
                if node.public_key
            }

    def admit(self, partition_id: int, node_id: int) -> bool:
        """Return whether a node may have a partition: nobody has it, or its key does."""
        owner = self._keys.get(partition_id)
        return owner is None or owner == self._of_nodes.get(node_id)

    def bind(self, partition_id: int, node_id: int) -> None:
        """Give a partition to a node for the rest of the run, if the node has a key."""
        if node_id in self._of_nodes:
            self._keys[partition_id] = self._of_nodes[node_id]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the keys as an array by its name; empty if no partition has one."""
        if not self._keys:
            return {}
        keys = np.zeros((self._num_partitions, 32), dtype=np.uint8)
        for n, digest in self._keys.items():
            keys[n] = np.frombuffer(bytes.fromhex(digest), dtype=np.uint8)
        return {KEYS: keys}

    def set_state(self, state: Arrays) -> None:
        """Take over the keys that `state` returned."""
        if self._num_partitions and KEYS in state:
            self._keys = {n: bytes(key).hex() for n, key in enumerate(state[KEYS]) if key.any()}


LONGEST_PAUSE = 8  # largest number of rounds between two queries to a node without a valid answer


@dataclass
class PendingNode:
    """A connected node without a valid answer yet; each reason is logged once."""

    failures: int = 0
    next_round: int = 0
    reasons: set[str] = field(default_factory=set)


class PendingNodes:
    """The nodes without a valid answer, by node id."""

    def __init__(self) -> None:
        self._nodes: dict[int, PendingNode] = {}

    def to_ask(self, node_ids: Iterable[int], server_round: int) -> list[int]:
        """Return those of some nodes that were not asked before, or are asked again now."""
        nodes = self._nodes
        return sorted(n for n in node_ids if n not in nodes or nodes[n].next_round <= server_round)

    def exclude(self, node_id: int, server_round: int, reason: str) -> None:
        """Exclude a node for now; it is asked again after 1, 2, 4, 8, 8, … rounds."""
        node = self._nodes.setdefault(node_id, PendingNode())
        node.next_round = server_round + min(2**node.failures, LONGEST_PAUSE)
        node.failures += 1
        if reason not in node.reasons:
            log(WARNING, "Excluded: %s", reason)
        node.reasons.add(reason)

    def admit(self, node_id: int) -> None:
        """Forget a node, which is a client from now on."""
        self._nodes.pop(node_id, None)

    def reasons_of(self, node_id: int) -> list[str]:
        """Return why a node was excluded, in alphabetical order; empty for one never asked."""
        return sorted(self._nodes[node_id].reasons) if node_id in self._nodes else []

    def reasons(self) -> list[str]:
        """Return why nodes were excluded, node by node."""
        return [reason for node_id in self._nodes for reason in self.reasons_of(node_id)]


LEFT_OUT = "left-out"
"""Entry of a question with the reason for which the node was left out; empty at first."""

MEMBERS = "members/"  # how the names of this module's arrays in a saved state begin

PUBLIC_HASH, CLASSES_HASH = f"{MEMBERS}public-hash", f"{MEMBERS}classes-hash"
"""Names in a saved state of the text, in bytes, of the hashes that all clients have in common."""

SIZES, STARTS = f"{MEMBERS}sizes", f"{MEMBERS}starts"
"""Names there of the sizes D_n, (N,) int64, 0 for clients that have not joined, and of `starts`."""

HELD = f"{MEMBERS}held/"
"""How the names there of late replies begin."""

LARGEST_SIZE = 10**9  # upper limit of the number of samples that a client may report


class Membership:
    """The clients of a run, by partition-id, as they join, disconnect and return.

    `pending` are connected nodes that are no clients; `starts` the rounds that were complete at
    each start of the run, this one included.
    """

    def __init__(self, plan: RunPlan, needs_public_data: bool) -> None:
        self.plan = plan
        self.needs_public_data = needs_public_data
        self.clients: dict[int, ClientInfo] = {}
        self.pending = PendingNodes()
        self.new = frozenset(plan.new_client_ids)
        self._public_hash = plan.public_hash
        self._classes_hash = ""
        self._sizes_before: dict[int, int] = {}
        self._online: set[int] = set()
        self.owners = Owners(plan.num_clients if plan.bind_partitions else 0)
        self._absent: list[int] = []
        self.starts = [0]
        self.stragglers = Stragglers(plan, self.clients)

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return starts, owners, sizes, late replies, and the hashes that clients share."""
        public_hash = self._public_hash if self.needs_public_data else ""
        hashes = {CLASSES_HASH: self._classes_hash, PUBLIC_HASH: public_hash}
        known = {name: text.encode() for name, text in hashes.items() if text}
        texts = {name: np.frombuffer(text, dtype=np.uint8) for name, text in known.items()}
        reported = self.known_sizes
        sizes = np.array([reported.get(n, 0) for n in range(self.plan.num_clients)])
        held = {f"{HELD}{n}": reply for n, reply in self.stragglers.held.items()}
        counted = {SIZES: sizes, STARTS: np.array(self.starts)}
        return {**self.owners.state(), **texts, **counted, **held}

    def resume(self, completed_rounds: int, saved: Arrays) -> None:
        """Continue after some rounds with what `saved_arrays` returned."""
        self.starts = [*map(int, saved.get(STARTS, ())), completed_rounds]
        self.owners.set_state(saved)
        self._sizes_before = {n: int(size) for n, size in enumerate(saved.get(SIZES, ())) if size}
        self._public_hash = self._public_hash or _text(saved, PUBLIC_HASH)
        self._classes_hash = _text(saved, CLASSES_HASH)
        late = {k.removeprefix(HELD): v for k, v in saved.items() if k.startswith(HELD)}
        self.stragglers.hold(late)

    def reachable(self, grid: Grid | None) -> list[int]:
        """Return the partition-ids of the connected clients that are not at work, ascending."""
        online = set(grid.get_node_ids()) - {*getattr(grid, "busy", ())} if grid else set()
        return sorted(n for n, client in self.clients.items() if client.node_id in online)

    @property
    def known_sizes(self) -> dict[int, int]:
        """D_n of all joined clients, those not back in a resumed run too."""
        joined = {n: client.num_examples for n, client in self.clients.items()}
        return self._sizes_before | joined

    @property
    def trained(self) -> list[int]:
        """All clients whose sizes are known, except the new clients, in ascending order."""
        return sorted(n for n in self.known_sizes if n not in self.new)

    def sizes(self, partition_ids: Iterable[int]) -> NDArray[np.float64]:
        """Return D_n of some clients, (R,), at most `weight_cap` times the median."""
        limit = upper_limit(self._reported_sizes(self.trained), self.plan.weight_cap)
        return np.minimum(self._reported_sizes(partition_ids), limit)

    def _reported_sizes(self, partition_ids: Iterable[int]) -> NDArray[np.float64]:
        known = self.known_sizes
        return np.array([known[n] for n in partition_ids], dtype=np.float64)

    def meet(self, grid: Grid, server_round: int) -> None:
        """Query unknown nodes for their partition-id; the first time, wait for N nodes.

        A resumed run goes on with fewer, if they are at least `min_replies`. Raises
        `TooFewRepliesError`.
        """
        self._wait_for_stragglers(grid)
        self._online = self._wait_for_nodes(grid)
        self._tell_absent(server_round)
        unknown = self._online - {client.node_id for client in self.clients.values()}
        asked = self.pending.to_ask(unknown, server_round)
        if not asked:
            return
        self.owners.look_up(grid)
        questions = [Message(self._question(n), n, MessageType.QUERY) for n in asked]
        answers = {
            answer.metadata.src_node_id: answer
            for answer in grid.send_and_receive(questions, timeout=self.plan.round_timeout)
        }
        found = self._read(answers, server_round)
        self._public_hash = self._public_hash or most_common(c.public_hash for c in found)
        named = (c.classes_hash for c in found if c.classes_hash)
        self._classes_hash = self._classes_hash or most_common(named)
        known = set(self.clients)
        for client in found:
            self._admit(client, server_round)
        for node_id in sorted(set(asked) - set(answers)):
            self.pending.exclude(node_id, server_round, f"node {node_id} did not answer in time")
        joined = sorted(set(self.clients) - known)
        for n in joined if known else []:
            log(INFO, "%s joined in round %d", self.clients[n].label, server_round)
        self._warn_of_large_sizes(joined)
        self._require_clients()

    def _warn_of_large_sizes(self, joined: Sequence[int]) -> None:
        claimed, counted = self._reported_sizes(joined), self.sizes(joined)
        for n, size, limit in zip(joined, claimed, counted, strict=True):
            if size > limit:
                log(WARNING, "Capped: client %d claims %d training samples and counts with %g "
                    "(weight-cap = %g)", n, size, limit, self.plan.weight_cap)  # fmt: skip

    def _question(self, node_id: int) -> RecordDict:
        """Return what a node is asked, and why it was left out before, for its own log."""
        reasons = "; ".join(self.pending.reasons_of(node_id))
        config = ConfigRecord({"phase": "properties", LEFT_OUT: reasons})
        return RecordDict({"config": config})

    def _wait_for_nodes(self, grid: Grid) -> set[int]:
        wanted, is_first = self.plan.num_clients, not self.clients
        deadline = time.monotonic() + (self.plan.connect_timeout if is_first else 0)
        logged = None
        while len(nodes := set(grid.get_node_ids())) < wanted:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if len(nodes) != logged:
                log(INFO, "Waiting up to %.0f s for %d clients: %d are connected (num-clients=0 "
                    "takes all that are connected)", left, wanted, len(nodes))  # fmt: skip
                logged = len(nodes)
            time.sleep(0.2)
        if not is_first or len(nodes) >= wanted:
            return nodes
        if self.starts[-1] == 0:
            raise TooFewRepliesError(
                f"The run needs {wanted} clients and {len(nodes)} are connected: connect more, or "
                "set num-clients to their number, or to 0 for all that are connected."
            )
        if len(nodes) < self.plan.min_replies:
            raise TooFewRepliesError(
                f"The run continues with at least {self.plan.min_replies} clients (min-replies), "
                f"and {len(nodes)} are connected: connect more, or lower min-replies."
            )
        log(WARNING, "Continuing with %d of %d clients; the others join when they connect",
            len(nodes), wanted)  # fmt: skip
        return nodes

    def _wait_for_stragglers(self, grid: Grid) -> None:
        """Wait where a round without the late clients would have fewer than `min_replies`."""
        while getattr(grid, "busy", ()) and len(self.reachable(grid)) < self.plan.min_replies:
            time.sleep(0.2)

    def _tell_absent(self, server_round: int) -> None:
        """Log which clients are not connected, if they are others than in the last round."""
        absent = sorted(n for n, c in self.clients.items() if c.node_id not in self._online)
        if absent and absent != self._absent:
            labels = ", ".join(self.clients[n].label for n in absent)
            log(WARNING, "Not connected in round %d: %s", server_round, labels)
        self._absent = absent

    def _read(self, answers: Mapping[int, Message], server_round: int) -> list[ClientInfo]:
        """Read what nodes report about themselves, and exclude those with an invalid answer."""
        found = []
        for node_id, answer in answers.items():
            try:
                found.append(read_client(answer))
            except InvalidReplyError as error:
                self.pending.exclude(node_id, server_round, str(error))
        return found

    def _admit(self, client: ClientInfo, server_round: int) -> None:
        """Register one client, or exclude its node with the reason."""
        client, node_id = self._with_valid_name(client), client.node_id
        try:
            self._check_client(client)
        except InvalidReplyError as error:
            self.pending.exclude(node_id, server_round, str(error))
        else:
            self.clients[client.partition_id] = client
            self.owners.bind(client.partition_id, node_id)
            self.pending.admit(node_id)
            if found := difference(installed_versions(), client.versions):
                log(WARNING, "%s has %s; its numbers may differ", client.label, found)

    def _check_client(self, client: ClientInfo) -> None:
        n = client.partition_id
        if not 0 <= n < self.plan.num_clients:
            raise InvalidReplyError(f"partition {n} is outside 0..{self.plan.num_clients - 1}")
        if not 1 <= client.num_examples <= LARGEST_SIZE:
            raise InvalidReplyError(f"client {n} has {client.num_examples} training samples")
        if reason := refusal(installed_versions(), client.versions):
            raise InvalidReplyError(f"client {n} {reason}")
        if client.num_clients not in (0, self.plan.num_clients):
            raise InvalidReplyError(
                f"client {n} has a share of data divided among {client.num_clients} clients, but "
                f"the run has {self.plan.num_clients}: connect as many nodes as num-partitions in "
                "their node configs, or set num-partitions to the number of nodes"
            )
        known = self.clients.get(n)
        if known and known.node_id in self._online:
            raise InvalidReplyError(f"partition {n} is already taken by another node")
        if not self.owners.admit(n, client.node_id):
            raise InvalidReplyError(
                f"partition {n} belongs to the node with another key that joined first: start it "
                "with that registered key, or set bind-partitions = false to admit a new one"
            )
        if client.classes_hash and client.classes_hash != self._classes_hash:
            raise InvalidReplyError(
                f"client {n} numbers its classes differently: use the names of class folders "
                f"that most clients have (fedkd doctor lists them; hash "
                f"{client.classes_hash[:12]} instead of {self._classes_hash[:12]})"
            )
        if self.needs_public_data and client.public_hash != self._public_hash:
            raise InvalidReplyError(
                f"client {n} has another public set (hash {client.public_hash[:12]}) than "
                f"the run ({self._public_hash[:12]})"
            )

    def _with_valid_name(self, client: ClientInfo) -> ClientInfo:
        """Return a client without its name, with a warning, if it is invalid or another's."""
        if not client.name:
            return client
        taken = {c.name.casefold() for n, c in self.clients.items() if n != client.partition_id}
        if valid_name(client.name) and client.name.casefold() not in taken:
            return client
        reason = "as another client does" if valid_name(client.name) else "which is none"
        log(WARNING, "client %d gives the name %r, %s: names have up to 40 letters, digits, dots, "
            "dashes, underscores and spaces", client.partition_id, client.name, reason)  # fmt: skip
        return replace(client, name="")

    def _require_clients(self) -> None:
        if len(self.clients) >= self.plan.min_replies:
            return
        first = next(iter(self.pending.reasons()), "too few nodes with distinct partition-ids")
        raise TooFewRepliesError(
            f"{len(self.clients)} valid clients are fewer than min-replies = "
            f"{self.plan.min_replies}; the first reason: {first}."
        )


def most_common(hashes: Iterable[str]) -> str:
    """Return the most common of some hashes, of equals the first by name; empty for none."""
    counts = Counter(hashes)
    return max(sorted(counts), key=counts.__getitem__, default="")


def _text(saved: Arrays, name: str) -> str:
    return saved[name].tobytes().decode() if name in saved else ""
