"""What a node's own log says of each message: when, which round, what was done and how well."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Context, Message, MetricRecord

from fedkd_flwr.clients.policy import read_policy
from strategies.core.exchange import DROPPED
from strategies.core.flower import log
from strategies.core.membership import LEFT_OUT
from strategies.core.metrics import counts_in
from strategies.core.replies import record_of

REFUSALS = {LEFT_OUT: "had left this node out", DROPPED: "dropped this node's last reply"}
"""What the server tells a node of its refusals: entry of a message, and what it means."""

Serve = Callable[[Message, Context], Message]
"""Handles a message."""


def log_work(message: Message, context: Context, serve: Serve) -> Message:
    """Handle a message, and log what was done unless server and node are one user's.

    A mod of Flower's ClientApp.
    """
    started_at = time.perf_counter()
    reply = serve(message, context)
    if not read_policy(context.node_config).trust_server:
        for entry, what in REFUSALS.items():
            if reason := told(message, entry):
                log(WARNING, "%s the server %s: %s", _now(), what, reason)
        log(INFO, "%s %s", _now(), described(message, reply, time.perf_counter() - started_at))
    return reply


def told(message: Message, entry: str) -> str:
    """Return an entry of a message's config as text that a terminal prints; empty without it."""
    config = record_of(message, "config", ConfigRecord)
    return _printable(str(config.get(entry, "")))


def _printable(text: str) -> str:
    """Return a server's text without line ends and control characters, which could forge lines."""
    return "".join(filter(str.isprintable, text))


def described(message: Message, reply: Message, seconds: float) -> str:
    """Return what a reply says, such as ``round 3, train: 216 samples, accuracy 71.2% of 72``."""
    metrics = record_of(reply, "metrics", MetricRecord)
    kind = message.metadata.message_type.partition(".")[0]
    server_round = _printable(message.metadata.group_id)
    parts = []
    if "num-examples" in metrics:
        parts.append(f"{metrics['num-examples']} samples")
    if "train-loss" in metrics:
        parts.append(f"training loss {metrics['train-loss']:.4f}")
    for counts in counts_in(metrics):
        if counts.model == "own":
            split = "" if counts.split == "test" else f"{counts.split} "
            parts.append(f"{split}accuracy {counts.correct / counts.total:.1%} of {counts.total}")
    where = f"round {server_round}, {kind}" if server_round else kind
    return f"{where}: {', '.join([*parts, f'{seconds:.1f} s'])}"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
