"""A Flower Grid that runs its clients in this process.

It has no start-up cost, one CUDA context and one decoded copy of the data. It is meant for tests,
notebooks and machines with one GPU. The apps are the same as in the other engines.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from operator import length_hint

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.clients.tracebacks import Tracebacks
from fedkd_flwr.config import Configuration
from fedkd_flwr.grids.base import MessageGrid
from fedkd_flwr.memory import InProcessContext, Memory, memories_in
from strategies.core.flower import ErrorCode, Run, TaskIdentity, set_message_id
from strategies.core.rounds import Observer

SERVED_AT_ONCE = {"cpu": 36, "cuda": 64}
"""Largest number of messages that are handled at once, by device.

Clients need their old and their new memory until they are done. A GPU needs many clients at once.
"""

TogetherCall = Callable[
    [Sequence[Message], Sequence[Context], Callable[[int], None]], list[Message | Exception]
]
"""Handles several messages at once, and reports how many are done in between. It returns replies,
or exceptions, in the order of the messages."""

ClientCall = Callable[[Message, Context], Message]
"""Handles a message: a ClientApp, or a broken one in tests."""


class InProcessGrid(MessageGrid):
    """Delivers messages by calling the ClientApp, one client after another.

    Parameters
    ----------
    client_app : ClientApp or callable
        Handles the messages.
    num_clients : int
        N. Client n gets partition-id n.
    run_config : Configuration or mapping
        The run config for all clients. With one that this process has read, clients keep their
        memory as tensors. With Flower's flat one it is arrays in their contexts, as on the nodes
        of a federation.
    node_configs : dict of int to mapping, optional
        Further node config of some clients, by partition-id. By default clients trust the
        server, since both are of this process.
    together : callable, optional
        Handles the train messages of one exchange at once, instead of `client_app`.
    observer : Observer, optional
        Is told how many clients have replied so far.
    """

    serves_in_turn = True
    """Whether each message is handled before the next one is created."""

    def __init__(
        self,
        client_app: ClientApp | ClientCall,
        num_clients: int,
        run_config: Configuration | UserConfig,
        node_configs: dict[int, UserConfig] | None = None,
        together: TogetherCall | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._client_app = client_app
        self._together = together
        self._observer = observer or Observer()
        self._run = Run.create_empty(1)
        # Flower's Message reads its sender from here.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        # Node ids are arbitrary. They differ from partition-ids so that mix-ups are visible.
        nodes: dict[int, UserConfig] = {
            1000 + n: {
                **TRUSTED_NODE,
                "partition-id": n,
                "num-partitions": num_clients,
                **(node_configs or {}).get(n, {}),
            }
            for n in range(num_clients)
        }
        self._contexts = {
            node_id: InProcessContext(run_config, node_id, node)
            if isinstance(run_config, Configuration)
            else Context(1, node_id, node, RecordDict(), run_config)
            for node_id, node in nodes.items()
        }
        self._message_ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self._tracebacks = Tracebacks()

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    @property
    def contexts(self) -> dict[int, Context]:
        """Every client's context with its memory, by partition-id."""
        return {int(c.node_config["partition-id"]): c for c in self._contexts.values()}

    def memories(self) -> dict[int, Memory]:
        """Return the memories of clients whose contexts hold them, by partition-id."""
        return memories_in(self.contexts)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of all clients."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Handle each message immediately and keep the reply."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the kept replies, each once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Handle messages in order. Messages after the timeout get no reply."""
        total, waiting = length_hint(messages), iter(messages)
        first = next(waiting, None)
        if first is None:
            return []
        if self._together and total > 1 and first.metadata.message_type == MessageType.TRAIN:
            together = [first, *waiting]
            if _are_for_different_clients(together):
                return self._serve_together(together)
            waiting = iter(together[1:])
        tell = self._teller(first.metadata.message_type, total)
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        for message in itertools.chain([first], waiting):
            if deadline is not None and time.monotonic() >= deadline:
                break
            replies.extend(self.pull_messages([self._push(message)]))
            tell(1)
        return replies

    def _teller(self, message_type: str, total: int) -> Callable[[int], None]:
        """Return a function that reports that further messages were handled."""
        answered, started_at = 0, time.monotonic()

        def tell(more: int) -> None:
            nonlocal answered
            answered += more
            self._observer.clients_answered(message_type, answered, total)
            if self.duration and message_type == MessageType.TRAIN:
                self.duration.trained(time.monotonic() - started_at, answered, total)

        return tell

    def _push(self, message: Message) -> str:
        message_id = str(next(self._message_ids))
        set_message_id(message, message_id)
        self._replies[message_id] = self._serve(message)
        return message_id

    def _serve(self, message: Message) -> Message:
        context = self._draft_for(message)
        try:
            reply = self._client_app(message, context)
        except Exception as error:
            return self._answered(message, context, error)
        return self._answered(message, context, reply)

    def _serve_together(self, messages: list[Message]) -> list[Message]:
        assert self._together
        replies: list[Message] = []
        tell = self._teller(MessageType.TRAIN, len(messages))
        at_once = SERVED_AT_ONCE["cuda" if torch.cuda.is_available() else "cpu"]
        for start in range(0, len(messages), at_once):
            chunk = messages[start : start + at_once]
            for message in chunk:
                set_message_id(message, str(next(self._message_ids)))
            drafts = [self._draft_for(message) for message in chunk]
            outcomes = self._together(chunk, drafts, tell)
            replies += map(self._answered, chunk, drafts, outcomes)
        return replies

    def _draft_for(self, message: Message) -> Context:
        """Return a copy of a client's context, which a message may change."""
        kept = self._contexts[message.metadata.dst_node_id]
        draft = copy(kept)
        draft.state = RecordDict(dict(kept.state))
        return draft

    def _answered(self, message: Message, draft: Context, outcome: Message | Exception) -> Message:
        """Return the reply or an error message. The draft is kept only with a reply.

        As in Flower's own engines, a client that fails keeps nothing of the failed message.
        """
        if isinstance(outcome, Message):
            self._contexts[draft.node_id] = draft
            return outcome
        self._tracebacks.log_once(outcome, draft.node_config["partition-id"])
        return _failure(message, outcome)


def _are_for_different_clients(messages: Sequence[Message]) -> bool:
    """Return whether no two messages are for the same client."""
    return len({message.metadata.dst_node_id for message in messages}) == len(messages)


def _failure(message: Message, error: Exception) -> Message:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
