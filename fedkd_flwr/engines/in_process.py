"""The engine ``in-process``: all clients in this process, in cohorts where that is faster."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from operator import length_hint
from typing import Any

import torch
from flwr.app import Context, Error, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import train_together
from fedkd_flwr.clients.policy import TRUSTED_NODE
from fedkd_flwr.clients.tracebacks import Tracebacks, stop_at_own_code
from fedkd_flwr.config import ConfigError, Configuration
from fedkd_flwr.grids import MessageGrid
from fedkd_flwr.memory import InProcessContext, Memory, memories_in
from fedkd_flwr.models import model_pool
from fedkd_flwr.models.features import own_widths
from fedkd_flwr.runs import Run
from fedkd_flwr.server_app import serve
from fedkd_flwr.training.cohort import cohort_size
from strategies.core import flower
from strategies.core.flower import LOGGER, ErrorCode, TaskIdentity, set_message_id
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
    """Delivers messages by calling the ClientApp, one client after another, or `together`.

    With a config that this process has read, clients keep their memory as tensors; with Flower's
    flat one it is arrays in their contexts, as on the nodes of a federation.
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
        on_client_error: str = "drop",
    ) -> None:
        self._client_app = client_app
        self._on_client_error = on_client_error
        self._together = together
        self._observer = observer or Observer()
        self._run = flower.Run.create_empty(1)
        # Flower's Message reads its sender from here.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._contexts: dict[int, Context] = {}
        for n in range(num_clients):
            # Node ids are arbitrary. They differ from partition-ids so that mix-ups are visible.
            node_id = 1000 + n
            node: UserConfig = {**TRUSTED_NODE, "partition-id": n, "num-partitions": num_clients}
            node |= (node_configs or {}).get(n, {})
            self._contexts[node_id] = (
                InProcessContext(run_config, node_id, node)
                if isinstance(run_config, Configuration)
                else Context(1, node_id, node, RecordDict(), run_config)
            )
        self._message_ids = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self._tracebacks = Tracebacks()

    def set_run(self, run: flower.Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> flower.Run:
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
            if len({message.metadata.dst_node_id for message in together}) == len(together):
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
        answered = 0

        def tell(more: int) -> None:
            nonlocal answered
            answered += more
            self._observer.clients_answered(message_type, answered, total)

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
            self._stop_at_own_code([context], [error])
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
            self._stop_at_own_code(drafts, outcomes)
            replies += map(self._answered, chunk, drafts, outcomes)
        return replies

    def _stop_at_own_code(
        self, contexts: Sequence[Context], outcomes: Sequence[Message | Exception]
    ) -> None:
        """Stop the run if a client failed in the user's code, unless the run drops such replies."""
        if self._on_client_error == "drop":
            return
        ids = (int(context.node_config["partition-id"]) for context in contexts)
        outcome_of = zip(ids, outcomes, strict=True)
        stop_at_own_code({n: found for n, found in outcome_of if isinstance(found, Exception)})

    def _draft_for(self, message: Message) -> Context:
        """Return a copy of a client's context, which a message may change."""
        kept = self._contexts[message.metadata.dst_node_id]
        draft = copy(kept)
        draft.state = RecordDict(dict(kept.state))
        return draft

    def _answered(self, message: Message, draft: Context, outcome: Message | Exception) -> Message:
        """Return the reply or an error message; a client that fails keeps nothing."""
        if isinstance(outcome, Message):
            self._contexts[draft.node_id] = draft
            return outcome
        self._tracebacks.log_once(outcome, draft.node_config["partition-id"])
        reason = f"{type(outcome).__name__}: {' '.join(str(outcome).split())}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


_ONE_RUN = threading.RLock()
"""Held during a run, since all runs of a process share PyTorch's random generator."""


def run_in_process(
    configuration: Configuration, observer: Observer, resources: Mapping[str, Any] | None
) -> Run:
    """Run a method with all clients in this process."""
    check_in_process(configuration, resources)
    together = None if configuration.run.cohort == "off" else train_together
    grid = InProcessGrid(
        client_app,
        configuration.run.plan.num_clients,
        configuration,
        together=together,
        observer=observer,
        on_client_error=configuration.run.on_client_error,
    )
    with _ONE_RUN, _log_for(observer):
        threads = torch.get_num_threads()
        try:
            return serve(grid, configuration, observer)
        finally:
            # The next run may not set their number.
            torch.set_num_threads(threads)
            # A custom network may have changed by the next run and keep its name.
            model_pool.clear()
            cohort_size.cache_clear()
            own_widths.cache_clear()


def check_in_process(configuration: Configuration, resources: Mapping[str, Any] | None) -> None:
    """Refuse what this engine cannot run; see `run_in_process`."""
    if resources:
        raise ConfigError(
            "The engine in-process takes no federation config; type --engine simulation."
        )
    device = configuration.run.torch_device
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device = {device} cannot be used here: {reason}") from None


@contextmanager
def flower_log_level(level: int) -> Iterator[None]:
    """Set the level of Flower's log, and restore it afterwards."""
    before = LOGGER.level
    LOGGER.setLevel(level)
    try:
        yield
    finally:
        LOGGER.setLevel(before)


@contextmanager
def _log_for(observer: Observer) -> Iterator[None]:
    """Pass Flower's log to an observer that reads it; else print its warnings."""
    before = LOGGER.handlers
    if observer.reads_log:
        LOGGER.handlers = [_LineHandler(observer)]
    try:
        with flower_log_level(logging.INFO if observer.reads_log else logging.WARNING):
            yield
    finally:
        LOGGER.handlers = before


class _LineHandler(logging.Handler):
    """Passes log records on as lines in the format of ``flwr run``."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer
        self.setFormatter(logging.Formatter("%(levelname)s : %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._observer.line_logged(line)
