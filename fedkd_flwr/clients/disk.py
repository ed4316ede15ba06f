"""A client's memory on disk, beside Flower's context.

A context lives as long as its SuperNode or simulation. With a ``state-dir`` a client also
keeps its memory in files, one a round, so that a restarted node or a resumed run goes on
where it stopped. The last two rounds are kept: the server may have to repeat the newest.

Each run has a folder of its own, and the last few runs are kept. Of a run that had to go a
mark stays, so that a node which is asked to continue it says so instead of starting over.
"""

import json
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.supercore import log
from safetensors import SafetensorError, safe_open

from fedkd_flwr.files import write_arrays

PROGRESS = "progress"
"""Name of the record that says which round the memory belongs to."""

ROUNDS_KEPT = 2
"""Rounds whose memory stays on disk."""

RUNS_KEPT = 5
"""Runs whose memory stays on disk, where the node config has no ``keep-runs``."""

FORGOTTEN = "forgotten"
"""Name of the file that marks the folder of a run whose memory is gone."""

MEMORIES = "round-*.safetensors"
"""The files of a run's folder, one a round."""


class ForgottenRunError(RuntimeError):
    """A run that goes on after the node has removed its memory of it."""


class DamagedMemoryError(RuntimeError):
    """A memory on disk that cannot be read; the message is one sentence."""


def remembered_round(context: Context) -> int:
    """Return the last round that the memory of a context went through, 0 for none."""
    record = context.state.metric_records.get(PROGRESS)
    return int(record["round"]) if record else 0  # type: ignore[arg-type]


def note_round(context: Context, server_round: int) -> None:
    """Note that the memory of a context has gone through a round."""
    context.state[PROGRESS] = MetricRecord({"round": server_round})


def save_context(context: Context, folder: Path) -> None:
    """Write the memory of a context to a client's folder, whole or not at all.

    Parameters
    ----------
    context : Context
        With its round noted.
    folder : Path
        The client's own folder, made if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{name}/{key}": array.numpy()
        for name, record in context.state.array_records.items()
        for key, array in record.items()
    }
    others: dict[str, dict[str, Any]] = {
        "metrics": {name: dict(record) for name, record in context.state.metric_records.items()},
        "words": {name: dict(record) for name, record in context.state.config_records.items()},
    }
    metadata = {name: json.dumps(value) for name, value in others.items()}
    path = folder / f"round-{remembered_round(context):06d}.safetensors"
    write_arrays(path, arrays, metadata)
    (folder / FORGOTTEN).unlink(missing_ok=True)
    for old in sorted(folder.glob(MEMORIES))[:-ROUNDS_KEPT]:
        old.unlink()


def forget_old_runs(current: Path, keep: int) -> None:
    """Remove the memories of all but the last few runs that a client served.

    Parameters
    ----------
    current : Path
        The client's folder of the run that is being served, beside those of other runs; it
        stays, and counts.
    keep : int
        Runs that are kept, the latest by modification time; 0 for all.
    """
    runs = [folder for folder in current.parent.iterdir() if next(folder.glob(MEMORIES), None)]
    others = sorted(set(runs) - {current}, key=lambda folder: folder.stat().st_mtime)
    too_many = max(0, len(others) + 1 - keep) if keep else 0
    for folder in others[:too_many]:
        log(WARNING, "Forgetting run %s: this node keeps %d runs (keep-runs)", folder.name, keep)
        (folder / FORGOTTEN).touch()
        for memory in folder.glob(MEMORIES):
            memory.unlink()


def recall(context: Context, folder: Path | None, server_round: int, phase: str) -> None:
    """Take up the memory from disk where the context has none that fits the round.

    A context that has trained in this round already belongs to a round that the server
    repeats after a crash; the memory of the round before is what it starts from.

    Parameters
    ----------
    context : Context
        Its state is replaced where the memory on disk is the one to start from.
    folder : Path or None
        The client's own folder of the run, if it has one.
    server_round : int
        The round of the message.
    phase : str
        ``train``, ``evaluate``, or the name of a method's further exchange.
    """
    remembered = remembered_round(context)
    is_repeated = phase == "train" and remembered >= server_round
    if folder is None or (remembered and not is_repeated):
        return
    before = server_round if phase == "train" else server_round + 1
    if not load_context(context, folder, before) and is_repeated:
        context.state.clear()


def load_context(context: Context, folder: Path, before_round: int) -> bool:
    """Fill a context with the newest memory from before a round.

    Parameters
    ----------
    context : Context
        Its state is replaced if there is such a memory.
    folder : Path
        The client's own folder.
    before_round : int
        Memory of this round or later is passed over.

    Returns
    -------
    bool
        Whether there was one.

    Raises
    ------
    ForgottenRunError
        If it was removed to make room for later runs.
    DamagedMemoryError
        If it cannot be read.
    """
    if (folder / FORGOTTEN).exists():
        raise ForgottenRunError(
            f"this node has forgotten run {folder.name} for later ones (keep-runs); "
            f"without {folder} it starts over"
        )
    older = [
        path
        for path in sorted(folder.glob(MEMORIES))
        if int(path.stem.removeprefix("round-")) < before_round
    ]
    if not older:
        return False
    arrays, others = _read(older[-1])
    context.state.clear()
    for name, record in arrays.items():
        context.state[name] = ArrayRecord(record)
    for name, numbers in others["metrics"].items():
        context.state[name] = MetricRecord(numbers)
    for name, words in others["words"].items():
        context.state[name] = ConfigRecord(words)
    return True


def _read(memory: Path) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    """Return the arrays of a memory by record and name, and its other records by kind."""
    records: dict[str, dict[str, Array]] = {}
    try:
        with safe_open(memory, framework="numpy") as file:
            others = {kind: json.loads(text) for kind, text in file.metadata().items()}
            for key in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                name, _, array_name = key.partition("/")
                records.setdefault(name, {})[array_name] = Array(file.get_tensor(key))
    except (SafetensorError, OSError, ValueError):
        raise DamagedMemoryError(
            f"the memory {memory} is damaged; once it is removed, an older one is used"
        ) from None
    return records, others
