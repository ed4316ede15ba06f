"""The messages of one round: what is sent, what comes back, and who failed."""

import copy
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from logging import WARNING
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.core.flower import log
from strategies.core.membership import ClientInfo
from strategies.core.plan import RunPlan
from strategies.core.replies import (
    Arrays,
    Due,
    InvalidReplyError,
    Metric,
    Payload,
    Reply,
    arrays_of,
    empty,
    read_reply,
)
from strategies.core.simplex import NotOnSimplexError
from strategies.core.traffic import Traffic


class InTurn:
    """Messages that are made one after the other, whenever the one before is out.

    Parameters
    ----------
    members : sequence of int
        Partition-ids of those addressed.
    message_for : callable
        Makes the message to one of them.
    """

    def __init__(self, members: Sequence[int], message_for: Callable[[int], Message]) -> None:
        self._members = members
        self._message_for = message_for

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Message]:
        return map(self._message_for, self._members)


class Encodings:
    """Arrays as they cross the network, each as long as what it was made of is there."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[NDArray[Any]], Array]] = {}

    def of(self, array: NDArray[Any]) -> Array:
        """Return an array encoded, which is done only once."""
        key = id(array)
        if key not in self._kept:
            # By a reference to the encodings, so that an array that stays does not keep them.
            forget = partial(_forget, weakref.ref(self), key)
            self._kept[key] = weakref.ref(array, forget), Array(array)
        return self._kept[key][1]


def _forget(encodings: "weakref.ref[Encodings]", key: int, _gone: object) -> None:
    """Forget what an array was encoded to: its id may be another's as soon as it is gone."""
    if kept := encodings():
        kept._kept.pop(key)


class Exchange:
    """Addresses messages to clients, and reads the valid ones among their replies.

    Parameters
    ----------
    clients : mapping of int to ClientInfo
        Everybody that was met, by partition-id.
    server_round : int
        The round of the run.
    plan : RunPlan
        Names the run to the clients, and says which round is its last.
    best_round : int
        The round before this one with the best validation accuracy, 0 for none.
    trained_rounds : int
        Rounds of training that are over, where the messages are to clients that come after it;
        else 0.

    Attributes
    ----------
    traffic : Traffic
        What crossed the network to train.
    failures : dict of int to str
        Who was dropped, and why.
    """

    def __init__(
        self,
        clients: Mapping[int, ClientInfo],
        server_round: int,
        plan: RunPlan,
        best_round: int = 0,
        trained_rounds: int = 0,
    ) -> None:
        self.traffic = Traffic()
        self.failures: dict[int, str] = {}
        self._clients = clients
        self._round = server_round
        self._run_id = plan.run_id
        self._best_round = best_round
        self._trained_rounds = trained_rounds
        self._is_last = server_round == plan.num_server_rounds or trained_rounds > 0
        self._sent: dict[int, int] = {}
        self._encodings = Encodings()

    def further(self, server_round: int) -> "Exchange":
        """Return the exchange of another round, whose traffic and failures count with these."""
        other = copy.copy(self)
        other._round, other._sent, other._encodings = server_round, {}, Encodings()
        other.traffic.let_go()
        return other

    def messages(
        self,
        message_type: str,
        phase: str,
        payloads: Mapping[int, Arrays],
        evaluate: bool = False,
    ) -> list[Message]:
        """Address one message to each client.

        Parameters
        ----------
        message_type : str
            Flower's, train or evaluate.
        phase : str
            What the client is to do; reaches it as ``config["phase"]``.
        payloads : mapping of int to mapping
            Arrays for each client, by partition-id.
        evaluate : bool
            Whether a train reply is to carry the counts of the trained model.
        """
        self._note_sent(payloads)
        config = self._config(phase, evaluate)
        return [self._message(message_type, n, arrays, config) for n, arrays in payloads.items()]

    def to_evaluate(
        self, asked: Iterable[int], payload_for: Callable[[int], Arrays], grid: Grid
    ) -> Collection[Message] | InTurn:
        """Address an evaluation message to each client, made when its turn has come.

        Most evaluations ask everybody, and a method may have a model for each: these are never
        all there at once with a grid that says of itself that it ``serves_in_turn``. Flower's own
        grids go through the messages twice, and get a list.

        Parameters
        ----------
        asked : iterable of int
            Partition-ids.
        payload_for : callable
            Gives a client's arrays.
        grid : Grid
            What will send them.
        """
        members = list(asked)
        self._note_sent(members)
        config = self._config("evaluate", evaluate=False)

        def message_for(partition_id: int) -> Message:
            arrays = payload_for(partition_id)
            return self._message(MessageType.EVALUATE, partition_id, arrays, config)

        messages = InTurn(members, message_for)
        return messages if getattr(grid, "serves_in_turn", False) else list(messages)

    def _note_sent(self, members: Iterable[int]) -> None:
        """Note who is to answer, by node id."""
        self._sent = {self._clients[n].node_id: n for n in members}

    def _config(self, phase: str, evaluate: bool) -> ConfigRecord:
        """Return what every message of a phase says."""
        return ConfigRecord(
            {
                "server-round": self._round,
                "phase": phase,
                "run-id": self._run_id,
                "last-round": self._is_last,
                "best-round": self._best_round,
                "trained-rounds": self._trained_rounds,
                "evaluate": evaluate,
            }
        )

    def _message(
        self, message_type: str, partition_id: int, arrays: Arrays, config: ConfigRecord
    ) -> Message:
        """Make the message to one client, and count what it holds."""
        payload = self.encoded(arrays)
        if message_type == MessageType.TRAIN or self._trained_rounds:
            self.traffic.count_down(partition_id, payload)
        content = RecordDict({"arrays": ArrayRecord(dict(payload)), "config": config})
        node_id = self._clients[partition_id].node_id
        return Message(content, node_id, message_type, group_id=str(self._round))

    def encoded(self, arrays: Arrays) -> Payload:
        """Encode arrays for the wire, one that several clients are sent only once."""
        return {name: self._encodings.of(array) for name, array in arrays.items()}

    def valid_replies(
        self,
        replies: Iterable[Message],
        due: Callable[[int], Mapping[str, Due]],
        metrics: Sequence[Metric],
        check: Callable[[Reply], None],
    ) -> dict[int, Reply]:
        """Decode and check the replies to the last messages; who gave no valid one is dropped.

        Parameters
        ----------
        replies : iterable of Message
            As they came, in any order.
        due : callable
            Gives what every array of one client's reply has to be.
        metrics : sequence of Metric
            Every number that a reply may hold.
        check : callable
            Raises `InvalidReplyError` or `NotOnSimplexError` where a reply makes no sense.

        Returns
        -------
        dict of int to Reply
            By ascending partition-id: sums over them must not depend on the order.
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
            empty(message)
        for partition_id in silent.values():
            self._drop(partition_id, "no reply in time")
        self._sent = {}
        return dict(sorted(valid.items()))

    def _drop(self, partition_id: int, reason: str) -> None:
        self.failures[partition_id] = reason
        log(WARNING, "Dropped from this round: client %d, %s", partition_id, reason)
