"""What a node has answered, for its operator: a file of JSON lines beside the node's memory."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from fedkd_flwr.bundles.approved_runs import digest_of_run
from fedkd_flwr.clients.policy import NodeConfigError, read_policy
from fedkd_flwr.clients.privacy_ledger import LEDGER, DamagedLedgerError, PrivacyLedger
from fedkd_flwr.files import now, open_private
from strategies.core.flower import log
from strategies.core.replies import arrays_of, record_of

AUDIT = "audit.jsonl"
"""Name of the file in ``state-dir/PARTITION-ID``. Earlier lines are in ``audit.jsonl.1`` to ``.9``,
the latest in ``.1``."""

MOST_BYTES, MOST_FILES = 10 * 2**20, 9
"""Size from which a file is put aside, and how many of these are kept."""

MOST_LETTERS = 100  # how much of a text of the server is written


def audited(
    message: Message, context: Context, serve: Callable[[Message, Context], Message]
) -> Message:
    """Handle a message, and write a line on what leaves the node. A mod of Flower's ClientApp.

    A node that trusts the server, or has no ``state-dir``, has no such file.
    """
    folder = _folder(context.node_config)
    if folder is None:
        return serve(message, context)
    try:
        reply = serve(message, context)
    except Exception as error:
        _write(folder, {**_asked(message, context), "error": str(error)})
        raise
    arrays = arrays_of(reply)
    sent = {name: list(array.shape) for name, array in arrays.items()}
    metrics = sorted(name for record in reply.content.metric_records.values() for name in record)
    size = sum(len(array.data) for array in arrays.values())
    spent = {"arrays": sent, "bytes": size, "metrics": metrics, **_epsilon(folder, context)}
    _write(folder, {**_asked(message, context), **spent})
    return reply


def _folder(node_config: Mapping[str, Any]) -> Path | None:
    state_dir = str(node_config.get("state-dir", ""))
    try:
        trusts_server = read_policy(node_config).trust_server
    except NodeConfigError:
        trusts_server = False
    if trusts_server or not state_dir:
        return None
    with suppress(RuntimeError):  # there is no such account, which the reply says
        return Path(state_dir).expanduser() / str(node_config.get("partition-id"))
    return None


def _asked(message: Message, context: Context) -> dict[str, Any]:
    """Return what a message asks for. Flower does not tell which account started the run."""
    config = record_of(message, "config", ConfigRecord)
    try:
        digest = digest_of_run(context.run_config)
    except ValueError:  # it cannot be read, which the error says
        digest = ""
    return {
        "time": now(),
        "server": message.metadata.src_node_id,
        "flower-run": context.run_id,
        "message": message.metadata.message_type[:MOST_LETTERS],
        "run": str(config.get("run-id", ""))[:MOST_LETTERS],
        "phase": str(config.get("phase", ""))[:MOST_LETTERS],
        "round": str(config.get("server-round", ""))[:MOST_LETTERS],
        "method": str(context.run_config.get("strategy", ""))[:MOST_LETTERS],
        "config": digest,
    }


def _epsilon(folder: Path, context: Context) -> dict[str, float]:
    """Return what the ledger has spent; nothing if it cannot be read.

    That must neither lose the reply nor leave the node as an error, which names the file.
    """
    policy = read_policy(context.node_config)
    ledger = PrivacyLedger(folder / LEDGER, delta=policy.privacy_delta)
    try:
        return {
            "ledger-epsilon": ledger.epsilon,
            "ledger-dp-epsilon": ledger.epsilon_of_training,
            "ledger-count-epsilon": ledger.epsilon_of_counts,
        }
    except (DamagedLedgerError, OSError, ArithmeticError) as error:
        log(WARNING, "%s was not read: %s", ledger.file, error)
        return {}


def _write(folder: Path, line: Mapping[str, Any]) -> None:
    """Append a line. A full disk must not lose a reply."""
    file = folder / AUDIT
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(file, "ab") as stream:
            stream.write(json.dumps(line).encode() + b"\n")
        if file.stat().st_size >= MOST_BYTES:
            _put_aside(file)
    except OSError as error:
        log(WARNING, "%s was not written: %s", file, error)


def _put_aside(file: Path) -> None:
    """Rename a file and those before it: ``audit.jsonl`` to ``audit.jsonl.1``, and so on."""
    names = [file, *(file.with_name(f"{AUDIT}.{number}") for number in range(1, MOST_FILES + 1))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if newer.exists():
            newer.replace(older)
