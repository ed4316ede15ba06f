"""What a node's own log says of each message: when, which round, what was done and how well."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Context, Message, MetricRecord

from fedkd_flwr.clients.policy import read_policy
from strategies.core.flower import log
from strategies.core.membership import LEFT_OUT

Serve = Callable[[Message, Context], Message]
"""Handles a message."""


def log_work(message: Message, context: Context, serve: Serve) -> Message:
    """Handle a message, and log what was done unless server and node are one user's.

    A mod of Flower's ClientApp.

    Parameters
    ----------
    message : Message
        What the server asks for.
    context : Context
        The node's context.
    serve : callable
        Handles the message.
    """
    started_at = time.perf_counter()
    reply = serve(message, context)
    if not read_policy(context.node_config).trust_server:
        if reason := reason_left_out(message):
            log(WARNING, "%s the server had left this node out: %s", _now(), reason)
        log(INFO, "%s %s", _now(), described(message, reply, time.perf_counter() - started_at))
    return reply


def reason_left_out(message: Message) -> str:
    """Return why the server left the node out before it asked again; empty if it did not."""
    told = message.content.config_records.get("config", ConfigRecord()).get(LEFT_OUT, "")
    return "".join(filter(str.isprintable, str(told)))


def described(message: Message, reply: Message, seconds: float) -> str:
    """Return what a reply says, such as ``round 3, train: 216 samples, accuracy 71.2% of 72``."""
    metrics = reply.content.metric_records.get("metrics", MetricRecord())
    kind = message.metadata.message_type.partition(".")[0]
    server_round = message.metadata.group_id
    parts = []
    if "num-examples" in metrics:
        parts.append(f"{metrics['num-examples']} samples")
    if "train-loss" in metrics:
        parts.append(f"training loss {metrics['train-loss']:.4f}")
    for split, prefix in (("", ""), ("validation ", "validation-")):
        if total := metrics.get(f"{prefix}total"):
            share = metrics[f"{prefix}correct"] / total  # type: ignore[operator]
            parts.append(f"{split}accuracy {share:.1%} of {total:.0f}")
    where = f"round {server_round}, {kind}" if server_round else kind
    return f"{where}: {', '.join([*parts, f'{seconds:.1f} s'])}"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
