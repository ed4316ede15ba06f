"""The Flower ClientApp: it reads messages, hands them to a client, and packs the replies."""

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import lru_cache, partial
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedkd_flwr.clients.audit import audited
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.clients.messages import Request, TrainReply
from fedkd_flwr.clients.node import with_known_clients
from fedkd_flwr.clients.node_log import log_work
from fedkd_flwr.clients.participation import participation
from fedkd_flwr.clients.policy import NodeConfigError, read_policy
from fedkd_flwr.clients.session import Session
from fedkd_flwr.clients.tracebacks import (
    ClientCodeError,
    Tracebacks,
    code_failure,
    failure_to_send,
    traceback_of_own_code,
)
from fedkd_flwr.config import Configuration, read_config
from fedkd_flwr.memory import InProcessContext
from fedkd_flwr.methods import REGISTERED, Method
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.training.cohort import cohort_size, run_together
from fedkd_flwr.training.loop import computing_in
from strategies.core.flower import log
from strategies.core.masks import ANSWERS
from strategies.core.replies import arrays_of, decoded, encoded, record_of

Outcome = Message | Exception  # a reply, or the exception that prevented it

Member = tuple[int, PersonalClient]
"""A client of a cohort, with the place of its message among those of the exchange."""

INFO = (
    "partition-id", "name", "model", "versions", "public-hash", "public-size", "classes-hash",
    "num-clients", ANSWERS,
)  # fmt: skip
"""Names of a client's properties in its replies."""

TRACEBACKS = Tracebacks()  # tracebacks logged by this process, if it belongs to a simulation


def explain_failures(
    message: Message, context: Context, serve: Callable[[Message, Context], Message]
) -> Message:
    """Handle a message; log the traceback of an exception, and raise what may leave the node."""
    try:
        return serve(message, context)
    except Exception as error:
        sent = _as_sent(error, context)
        if sent is not error:
            raise sent from None
        if "ray" not in sys.modules or isinstance(context, InProcessContext):
            raise
        partition_id = context.node_config.get("partition-id")
        TRACEBACKS.log_once(error, partition_id)
        stops = context.run_config.get("on-client-error", "stop") == "stop"
        if stops and traceback_of_own_code(error):
            raise ClientCodeError(code_failure(error, partition_id)) from error
        raise


def _as_sent(error: Exception, context: Context) -> Exception:
    """Return what may leave the node of an exception: itself if the node trusts the server."""
    try:
        trusts_server = read_policy(context.node_config).trust_server
    except NodeConfigError:
        trusts_server = False
    if trusts_server:
        return error
    return failure_to_send(error, context.node_config.get("partition-id"))


app = ClientApp(mods=[audited, explain_failures, log_work])


# A process that handles many messages of a run reads its config once. Another method may be
# registered under the same name between two runs.
@lru_cache(maxsize=4)
def _read_once(items: tuple[tuple[str, Any], ...], registered: Method | None) -> Configuration:
    return read_config(dict(items))


def build_client(context: Context) -> PersonalClient:
    """Build the method's client; nothing that the node's policy forbids is imported."""
    policy = read_policy(context.node_config)
    if isinstance(context, InProcessContext):
        configuration = context.configuration
    else:
        policy.check_names(context.run_config, str(context.node_config.get("data-path", "")))
        flat = with_known_clients(context.run_config, context.node_config)
        registered = REGISTERED.get(str(flat.get("strategy")))
        configuration = _read_once(tuple(flat.items()), registered)
    part = participation(configuration, policy, context.node_config, context.run_config)
    if threads := part.run.torch_threads:
        torch.set_num_threads(threads)
    return cast(PersonalClient, Session(context, part).client)


def computing(client: PersonalClient) -> AbstractContextManager[None]:
    """Return the context in which a client's networks run in the run's precision."""
    return computing_in(client.session.run.training.precision, client.device)


@app.query()
def properties(message: Message, context: Context) -> Message:
    """Reply with the client's properties."""
    client = build_client(context)
    named = {key: value for key, value in context.node_config.items() if key == "name"}
    known = {**client.get_properties({}), **named}
    log(logging.INFO, "Client %d: %s", client.partition_id, client.data.described())
    sizes = {name: known[name] for name in ("num-examples", "test-size", "validation-size")}
    return _reply(message, known, TrainReply(metrics=sizes))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Handle a train message of any phase."""
    return _trained(message, build_client(context))


def _trained(message: Message, client: PersonalClient) -> Message:
    with closing(client.session) as session, computing(client):
        reply = session.serve(_request(message))
    return _packed(message, client, reply)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Handle an evaluation message."""
    client = build_client(context)
    with closing(client.session) as session, computing(client):
        reply = session.serve_evaluation(_request(message))
    return _packed(message, client, reply)


def train_together(
    messages: Sequence[Message],
    contexts: Sequence[Context],
    on_done: Callable[[int], None] = lambda clients: None,
) -> list[Outcome]:
    """Handle the train messages of one exchange, clients with the same architectures together."""
    outcomes: dict[int, Outcome] = {}
    cohorts: dict[tuple[Architecture, ...], list[Member]] = defaultdict(list)
    for position, (message, context) in enumerate(zip(messages, contexts, strict=True)):
        try:
            client = build_client(context)
            if _cohort_size(client) > 1:
                cohorts[client.architectures].append((position, client))
                continue
            outcomes[position] = _trained(message, client)
        except Exception as error:
            outcomes[position] = _as_sent(error, context)
        on_done(1)
    for cohort in cohorts.values():
        size = _cohort_size(cohort[0][1])
        for start in range(0, len(cohort), size):
            members = cohort[start : start + size]
            outcomes |= _serve_together(members, messages)
            on_done(len(members))
    return [outcomes[position] for position in range(len(messages))]


def _cohort_size(client: PersonalClient) -> int:
    """Return how many clients like this one to train together; 1 for one at a time."""
    cohort = client.session.run.cohort
    return min((cohort_size(trained, cohort) for trained in client.architectures), default=1)


def _serve_together(members: Sequence[Member], messages: Sequence[Message]) -> dict[int, Outcome]:
    """Train a cohort, and return the outcomes by their places among the messages."""
    clients = [client for _, client in members]
    with ExitStack() as closed:
        for client in clients:
            closed.enter_context(closing(client.session))
        serve = [
            partial(client.session.serve, _request(messages[place])) for place, client in members
        ]
        with computing(clients[0]):
            answers = run_together(serve, clients[0].device)
    return {
        place: _as_sent(answer, client.session.context)
        if isinstance(answer, Exception)
        else _packed(messages[place], client, answer)
        for (place, client), answer in zip(members, answers, strict=True)
    }


def _request(message: Message) -> Request:
    return Request.read(decoded(arrays_of(message)), record_of(message, "config", ConfigRecord))


def _packed(message: Message, client: PersonalClient, reply: TrainReply) -> Message:
    answers = {ANSWERS: reply.answers} if reply.answers else {}
    return _reply(message, {**client.session.identity, **answers}, reply)


def _reply(message: Message, known: Mapping[str, Any], reply: TrainReply) -> Message:
    info = {name: known[name] for name in INFO if name in known}
    content = RecordDict(
        {
            "arrays": ArrayRecord(dict(encoded(reply.arrays))),
            "metrics": MetricRecord(dict(reply.metrics)),
            "info": ConfigRecord(info),
        }
    )
    return Message(content, reply_to=message)
