"""The messages of one round: payloads, valid replies, traffic and failures."""

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from strategies.core import flower
from strategies.core.flower import log
from strategies.core.plan import RunPlan
from strategies.core.probabilities import NotOnSimplexError
from strategies.core.randomness import random_generator
from strategies.core.replies import (
    Arrays,
    ClientInfo,
    Encodings,
    ExpectedArray,
    InvalidReplyError,
    Metric,
    Payload,
    Reply,
    TooFewRepliesError,
    arrays_of,
    read_reply,
    record_of,
)

MOST_DIMENSIONS = 64  # NumPy's limit for the dimensions of an array
COUNTED = ("numbers_up", "numbers_down", "bytes_up", "bytes_down")  # columns of a client


@dataclass
class Traffic:
    """Numbers and bytes that crossed the network in a round, by client.

    Evaluation messages are not counted, since a deployment chooses when to evaluate. They are
    counted for new clients, which may receive nothing else. `numbers_down_broadcast` counts arrays
    for several clients once.
    """

    numbers_down_broadcast: int = 0
    by_client: dict[int, dict[str, int]] = field(default_factory=dict)
    # References to the arrays prevent their ids from being reused.
    _broadcast: dict[int, Array] = field(default_factory=dict)

    def count_down(self, partition_id: int, payload: Payload) -> None:
        """Count a message to one client."""
        self._count(partition_id, "down", payload)
        new = {name: array for name, array in payload.items() if id(array) not in self._broadcast}
        self._broadcast |= {id(array): array for array in new.values()}
        self.numbers_down_broadcast += count_numbers(new)

    def count_up(self, partition_id: int, payload: Payload) -> None:
        """Count a reply of one client, valid or not."""
        self._count(partition_id, "up", payload)

    def let_go(self) -> None:
        """Release all arrays; shared arrays are counted again from now on."""
        self._broadcast.clear()

    def totals(self) -> dict[str, int]:
        """Return the columns of the round's row."""
        rows = self.by_client.values()
        totals = {name: sum(row[name] for row in rows) for name in COUNTED}
        return {**totals, "numbers_down_broadcast": self.numbers_down_broadcast}

    def _count(self, partition_id: int, way: str, payload: Payload) -> None:
        counts = self.by_client.setdefault(partition_id, dict.fromkeys(COUNTED, 0))
        counts[f"numbers_{way}"] += count_numbers(payload)
        counts[f"bytes_{way}"] += sum(len(array.data) for array in payload.values())


def count_numbers(payload: Payload) -> int:
    """Return the number of entries of a payload, limited by its actual size."""
    return sum(_numbers_in(array) for array in payload.values())


def _numbers_in(array: Array) -> int:
    """Return the number of entries of an array; 0 if its shape is invalid."""
    shape = array.shape
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        return 0
    return min(math.prod(shape), len(array.data))


DROPPED = "dropped"
"""Entry of a message with the reason for which the last reply of its receiver was dropped."""


class InTurn:
    """Messages that are created one by one, each when the previous one has been sent."""

    def __init__(self, members: Sequence[int], message_for: Callable[[int], Message]) -> None:
        self._members = members
        self._message_for = message_for

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Message]:
        return map(self._message_for, self._members)


class Stragglers:
    """The clients whose replies come after their round was closed (``close-after``).

    The grid of a deployment waits for them in the background. `delay` of the plan simulates them.

    Parameters
    ----------
    plan : RunPlan
        When a round closes, and simulated delays.
    clients : mapping of int to ClientInfo
        All clients that have joined, by partition-id.
    """

    def __init__(self, plan: RunPlan, clients: Mapping[int, ClientInfo]) -> None:
        self._plan = plan
        self._clients = clients
        self._held: dict[int, RecordDict] = {}

    @property
    def held(self) -> Arrays:
        """Bytes of the replies that come in the next round by their delays, by partition-id."""
        protos = {str(n): flower.recorddict_to_proto(held) for n, held in self._held.items()}
        return {n: np.frombuffer(p.SerializeToString(), np.uint8) for n, p in protos.items()}

    def hold(self, held: Arrays) -> None:
        """Continue with the replies that `held` returned."""
        read = flower.ProtoRecordDict.FromString
        self._held = {
            int(n): flower.recorddict_from_proto(read(kept.tobytes())) for n, kept in held.items()
        }

    def without(self, partition_ids: Iterable[int]) -> list[int]:
        """Return some clients without those that are at work by their simulated delays."""
        return [n for n in partition_ids if n not in self._held]

    def divided(
        self, server_round: int, replies: Iterable[Message], grid: Grid | None
    ) -> tuple[list[Message], list[Message]]:
        """Return the replies of a round that are in time, and those of earlier ones that came."""
        came = list(replies)
        before = [self._reply(n, held) for n, held in self._held.items() if n in self._clients]
        slow = self._simulated(server_round, came) if self._plan.delay else {}
        self._held = {n: message.content for n, message in slow.items()}
        late_nodes = {message.metadata.src_node_id for message in slow.values()}
        in_time = [m for m in came if m.metadata.src_node_id not in late_nodes]
        late = grid.late_replies() if grid is not None and hasattr(grid, "late_replies") else []
        return in_time, [*before, *late]

    def _simulated(self, server_round: int, replies: Sequence[Message]) -> dict[int, Message]:
        """Return the replies, by partition-id, that are late by their simulated delays."""
        plan = self._plan
        n_of = {client.node_id: n for n, client in self._clients.items()}
        sent = {n_of[m.metadata.src_node_id]: m for m in replies if not m.has_error()}
        delays = {n: delay_of(plan, n, server_round) for n in sent}
        first = sorted(delays.values())[: plan.min_replies]
        closed = max(first, default=0.0) + plan.close_after
        return {n: message for n, message in sent.items() if delays[n] > closed}

    def _reply(self, partition_id: int, content: RecordDict) -> Message:
        asked = Message(RecordDict(), self._clients[partition_id].node_id, MessageType.TRAIN)
        return Message(content, reply_to=asked)


def delay_of(plan: RunPlan, partition_id: int, server_round: int) -> float:
    """Return a client's simulated delay in a round, in seconds; see `PlanSettings.delay`."""
    of_client = random_generator(plan.seed, "delay", 0, partition_id).exponential(plan.delay)
    draw = random_generator(plan.seed, "delay", server_round, partition_id)
    return float(draw.exponential(of_client))


class Exchange:
    """Addresses messages of a round to clients, reads their valid replies, and counts the traffic.

    `trained_rounds` are the finished training rounds if the messages are to new clients, else 0.
    `starts` are the rounds that were complete at each start of the run, so that clients do not
    recall a round from before which the run was continued. `failures` has the reasons of dropped
    clients.
    """

    def __init__(
        self,
        clients: Mapping[int, ClientInfo],
        server_round: int,
        plan: RunPlan,
        best_round: int = 0,
        trained_rounds: int = 0,
        starts: Sequence[int] = (),
    ) -> None:
        self.traffic = Traffic()
        self.failures: dict[int, str] = {}
        self.server_round = server_round
        self._clients = clients
        self._plan = plan
        self._best_round = best_round
        self._trained_rounds = trained_rounds
        self._starts = list(starts)
        self._sent: dict[int, int] = {}
        self._encodings = Encodings()
        self._untold: dict[int, str] = {}

    def after(self, previous: "Exchange") -> "Exchange":
        """Return itself; clients learn why their last replies of the previous one were dropped."""
        self._untold = previous._untold
        return self

    def further(self, server_round: int) -> "Exchange":
        """Return the exchange of another round that adds to the same traffic and failures."""
        other = copy.copy(self)
        other.server_round, other._sent, other._encodings = server_round, {}, Encodings()
        other.traffic.let_go()
        return other

    def messages(
        self,
        message_type: str,
        phase: str,
        payloads: Mapping[int, Arrays],
        evaluate: bool = False,
        distilled: bool = False,
    ) -> list[Message]:
        """Address one message to each client; replies may have to include counts, see `Request`."""
        self._note_sent(payloads)
        config = self._config(phase, evaluate, distilled)
        return [self._message(message_type, n, arrays, config) for n, arrays in payloads.items()]

    def to_evaluate(
        self, asked: Iterable[int], payload_for: Callable[[int], Arrays], grid: Grid | None
    ) -> Collection[Message] | InTurn:
        """Address an evaluation message to each client, created when it is sent.

        A method may have one model per client, and a grid with ``serves_in_turn`` never needs all
        of them in memory. Flower's own grids iterate over the messages twice and get a list.
        """
        members = list(asked)
        self._note_sent(members)
        config = self._config("evaluate")

        def message_for(partition_id: int) -> Message:
            arrays = payload_for(partition_id)
            return self._message(MessageType.EVALUATE, partition_id, arrays, config)

        messages = InTurn(members, message_for)
        return messages if getattr(grid, "serves_in_turn", False) else list(messages)

    def _note_sent(self, members: Iterable[int]) -> None:
        self._sent = {self._clients[n].node_id: n for n in members}

    def _config(self, phase: str, evaluate: bool = False, distilled: bool = False) -> ConfigRecord:
        """Return the config of every message of a phase."""
        is_last = self.server_round == self._plan.num_server_rounds or self._trained_rounds > 0
        return ConfigRecord(
            {
                "server-round": self.server_round,
                "phase": phase,
                "run-id": self._plan.run_id,
                "last-round": is_last,
                "best-round": self._best_round,
                "trained-rounds": self._trained_rounds,
                "starts": self._starts,
                "evaluate": evaluate,
                "evaluate-distilled": distilled,
            }
        )

    def _message(
        self, message_type: str, partition_id: int, arrays: Arrays, config: ConfigRecord
    ) -> Message:
        """Create the message to one client and count its traffic."""
        payload = self._encodings.of(arrays)
        if message_type == MessageType.TRAIN or self._trained_rounds:
            self.traffic.count_down(partition_id, payload)
        if reason := self._untold.pop(partition_id, ""):
            config = ConfigRecord({**config, DROPPED: reason})
        content = RecordDict({"arrays": ArrayRecord(dict(payload)), "config": config})
        node_id = self._clients[partition_id].node_id
        return Message(content, node_id, message_type, group_id=str(self.server_round))

    def valid_replies(
        self,
        replies: Iterable[Message],
        due: Callable[[int], Mapping[str, ExpectedArray]],
        metrics: Sequence[Metric],
        check: Callable[[Reply], None],
    ) -> dict[int, Reply]:
        """Return the valid replies to the last messages by ascending partition-id; drop others.

        `due` has the arrays of a client's reply; `check` raises what refuses a reply.
        """
        valid: dict[int, Reply] = {}
        silent = dict(self._sent)
        for message in replies:
            partition_id = silent.pop(message.metadata.src_node_id, None)
            if partition_id is None:
                continue
            self.traffic.count_up(partition_id, arrays_of(message))
            try:
                reply = read_reply(message, partition_id, due(partition_id), metrics)
                check(reply)
                valid[partition_id] = reply
            except (InvalidReplyError, NotOnSimplexError) as error:
                self._drop(partition_id, str(error))
            # The message is in reference cycles, which would keep them.
            record_of(message, "arrays", ArrayRecord).clear()
        for partition_id in silent.values():
            self._drop(partition_id, "no reply in time")
        self._sent = {}
        return dict(sorted(valid.items()))

    def expect_late(self, replies: Iterable[Message]) -> None:
        """Take replies to messages of earlier rounds for those to the last messages."""
        senders = {message.metadata.src_node_id for message in replies}
        self._note_sent(n for n, client in self._clients.items() if client.node_id in senders)

    def require_replies(self, num_valid: int, completed_rounds: int) -> None:
        """Stop the run if a round has too few valid replies."""
        if num_valid >= self._plan.min_replies:
            return
        reasons = "; ".join(
            f"{self._clients[n].label}, {reason}" for n, reason in self.failures.items()
        )
        raise TooFewRepliesError(
            f"Round {self.server_round} has {num_valid} valid replies and min-replies is "
            f"{self._plan.min_replies} ({reasons}); {completed_rounds} rounds are complete."
        )

    def _drop(self, partition_id: int, reason: str) -> None:
        self.failures[partition_id] = self._untold[partition_id] = reason
        log(WARNING, "Dropped from this round: %s, %s", self._clients[partition_id].label, reason)
