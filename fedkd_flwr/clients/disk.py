"""A client's memory on disk, beside Flower's context.

A context lives as long as its SuperNode or simulation. With a ``state-dir`` a client also
keeps its memory in files, one a round, so that a restarted node or a resumed run goes on
where it stopped. The last two rounds are kept: the server may have to repeat the newest.

Each run has a folder of its own, and the last few runs are kept. Of a run that had to go a
mark stays, so that a node which is asked to continue it says so instead of starting over.

Clients that are all served by one process share an archive instead, one file a round for all of
them, in the folder ``RUN`` beside those of the partitions.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedkd_flwr.clients.memory import LiveContext, all_arrays, forget
from fedkd_flwr.files import write_arrays
from strategies.core.flower import log

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


def keep_context(context: Context, folder: Path | None, runs_kept: int) -> None:
    """Write the memory of a context to its client's folder, if it has one, and make room.

    A live context belongs to an engine that keeps the memory of all its clients.
    """
    if folder is None or isinstance(context, LiveContext):
        return
    save_context(context, folder)
    forget_old_runs(folder, runs_kept)


def save_context(context: Context, folder: Path) -> None:
    """Write the memory of a context to a client's folder, whole or not at all.

    Parameters
    ----------
    context : Context
        With its round noted.
    folder : Path
        The client's own folder of the run, made if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = memory_file(folder, remembered_round(context))
    write_arrays(path, _joined({"": all_arrays(context)}), _words({"": context}))
    (folder / FORGOTTEN).unlink(missing_ok=True)
    _remove_old_rounds(folder)


def save_archive(contexts: Mapping[int, Context], folder: Path, server_round: int) -> None:
    """Write the memories of all clients of a process to one file, whole or not at all.

    It need not reach the disk at once: it outlives the process, if not a power cut.

    Parameters
    ----------
    contexts : mapping of int to Context
        By partition-id.
    folder : Path
        The archive's folder of the run, made if missing.
    server_round : int
        The round that is complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"{n}/": context for n, context in contexts.items()}
    arrays = _joined({name: all_arrays(context) for name, context in named.items()})
    write_arrays(memory_file(folder, server_round), arrays, _words(named), durable=False)
    _remove_old_rounds(folder)


def memory_file(folder: Path, server_round: int) -> Path:
    """Return the file of a round's memory."""
    return folder / f"round-{server_round:06d}.safetensors"


def _joined(memories: Mapping[str, dict[str, dict[str, NDArray[Any]]]]) -> dict[str, NDArray[Any]]:
    """Name every array by its client's prefix, its record and its own name."""
    return {
        f"{prefix}{name}/{key}": array
        for prefix, records in memories.items()
        for name, record in records.items()
        for key, array in record.items()
    }


def _words(contexts: Mapping[str, Context]) -> dict[str, str]:
    """Return the records of numbers and words, by kind and then by the client's prefix."""
    kinds = {
        "metrics": {p: _records(c.state.metric_records) for p, c in contexts.items()},
        "words": {p: _records(c.state.config_records) for p, c in contexts.items()},
    }
    return {kind: json.dumps(value) for kind, value in kinds.items()}


def _records(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(record) for name, record in records.items()}


def _remove_old_rounds(folder: Path) -> None:
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
    repeats after a crash; the memory of the round before is what it starts from. A live context
    belongs to an engine that takes up the memory of all its clients.

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

    Raises
    ------
    ForgottenRunError
        If the memory was removed to make room for later runs.
    DamagedMemoryError
        If it cannot be read.
    """
    if isinstance(context, LiveContext):
        return
    remembered = remembered_round(context)
    is_repeated = phase == "train" and remembered >= server_round
    if folder is None or (remembered and not is_repeated):
        return
    before = server_round if phase == "train" else server_round + 1
    if not load_context(context, folder, before) and is_repeated:
        forget(context)


def take_up(contexts: Mapping[int, Context], archive: Path, before_round: int) -> None:
    """Fill contexts with what was kept of their clients, where anything was.

    Parameters
    ----------
    contexts : mapping of int to Context
        By partition-id.
    archive : Path
        The folder of `save_archive`.
    before_round : int
        Memory of this round or later is passed over.

    Raises
    ------
    ForgottenRunError
        If a memory was removed to make room for later runs.
    DamagedMemoryError
        If one cannot be read.
    """
    by_file: dict[Path, dict[str, Context]] = defaultdict(dict)
    for partition_id, context in contexts.items():
        folder = archive.parent / str(partition_id) / archive.name
        if file := newest_memory(folder, before_round):
            by_file[file][_prefix(file, folder)] = context
    for file, owners in by_file.items():
        _fill(owners, file)


def start_over(context: Context, folder: Path | None) -> None:
    """Forget what a client remembers of a run, in its context and on disk."""
    forget(context)
    for memory in folder.glob(MEMORIES) if folder else ():
        memory.unlink()


def load_context(context: Context, folder: Path, before_round: int) -> bool:
    """Fill a context with the newest memory from before a round, its own or the archive's.

    Parameters
    ----------
    context : Context
        Its state is replaced if there is such a memory.
    folder : Path
        The client's own folder of the run, ``STATE-DIR/PARTITION-ID/RUN``.
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
    file = newest_memory(folder, before_round)
    if file is None:
        return False
    _fill({_prefix(file, folder): context}, file)
    return True


def newest_memory(folder: Path, before_round: int) -> Path | None:
    """Return the newest file with a client's memory from before a round, its own or the archive's.

    Parameters
    ----------
    folder : Path
        The client's own folder of the run, ``STATE-DIR/PARTITION-ID/RUN``.
    before_round : int
        Memory of this round or later is passed over.

    Raises
    ------
    ForgottenRunError
        If it was removed to make room for later runs.
    """
    if (folder / FORGOTTEN).exists():
        raise ForgottenRunError(
            f"this node has forgotten run {folder.name} for later ones (keep-runs); "
            f"without {folder} it starts over"
        )
    archive = folder.parent.parent / folder.name
    older = [
        path
        for path in (*archive.glob(MEMORIES), *folder.glob(MEMORIES))
        if int(path.stem.removeprefix("round-")) < before_round
    ]
    return max(older, key=lambda path: path.stem, default=None)


def _prefix(file: Path, folder: Path) -> str:
    """Return how names begin in a file of what belongs to the client with a folder of its own."""
    return "" if file.parent == folder else f"{folder.parent.name}/"


def _fill(owners: Mapping[str, Context], file: Path) -> None:
    """Replace the memory of contexts, by their prefixes, by what a file holds of them."""
    try:
        with safe_open(file, framework="numpy") as stored:
            words = {kind: json.loads(text) for kind, text in stored.metadata().items()}
            keys: dict[str, list[str]] = defaultdict(list)
            for key in stored.keys():  # noqa: SIM118 - a safetensors file is no mapping
                keys["" if "" in owners else f"{key.partition('/')[0]}/"].append(key)
            for prefix, context in owners.items():
                arrays = {key.removeprefix(prefix): stored.get_tensor(key) for key in keys[prefix]}
                _replace(context, arrays, words["metrics"][prefix], words["words"][prefix])
    except (SafetensorError, OSError, ValueError, KeyError):
        raise DamagedMemoryError(
            f"the memory {file} is damaged; once it is removed, an older one is used"
        ) from None


def _replace(
    context: Context,
    arrays: Mapping[str, NDArray[Any]],
    numbers: Mapping[str, dict[str, Any]],
    words: Mapping[str, dict[str, Any]],
) -> None:
    """Replace a context's memory by arrays, named after their records, and other records."""
    records: dict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
    for key, array in arrays.items():
        name, _, array_name = key.partition("/")
        records[name][array_name] = array
    forget(context)
    for name, record in records.items():
        if isinstance(context, LiveContext):
            context.keep(name, {key: torch.from_numpy(array) for key, array in record.items()})
        else:
            context.state[name] = ArrayRecord({k: Array(array) for k, array in record.items()})
    for name, values in numbers.items():
        context.state[name] = MetricRecord(values)
    for name, values in words.items():
        context.state[name] = ConfigRecord(values)
