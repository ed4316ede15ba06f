"""Files with clients' memories.

A file has the memory of one client, or of several clients, each under its own prefix.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedkd_flwr.clients.memory import LiveContext, all_arrays, forget
from fedkd_flwr.files import make_folder, write_arrays

MEMORIES = "round-*.safetensors"
"""Pattern of the files in a run's folder, one per round."""

PLACES = "places"
"""Metadata of a file of several clients: the round whose file has each client's memory."""


class DamagedMemoryError(RuntimeError):
    """A memory on disk that cannot be read. The message is one sentence."""


def memory_file(folder: Path, server_round: int) -> Path:
    """Return the file of a round's memory."""
    return folder / f"round-{server_round:06d}.safetensors"


def round_of(file: Path) -> int:
    """Return the round of a memory file."""
    return int(file.stem.removeprefix("round-"))


def newest_before(folder: Path, before_round: int) -> Path | None:
    """Return the newest file in a folder from before a round, if there is one."""
    older = (file for file in folder.glob(MEMORIES) if round_of(file) < before_round)
    return max(older, key=round_of, default=None)


def prefix_of(partition_id: int) -> str:
    """Return the prefix of a client's records in a file of several clients."""
    return f"{partition_id}/"


def write_memories(
    file: Path,
    contexts: Mapping[str, Context],
    places: Mapping[int, int] | None = None,
    durable: bool = True,
) -> None:
    """Write memories to a file, completely or not at all.

    Parameters
    ----------
    file : Path
        Its folder is created if missing.
    contexts : mapping of str to Context
        By prefix. The prefix of a single client is empty.
    places : mapping of int to int, optional
        The round whose file has the client's memory, by partition-id.
    durable : bool
        Whether to wait until it is on the disk.
    """
    make_folder(file.parent)
    arrays = {
        f"{prefix}{name}/{key}": array
        for prefix, context in contexts.items()
        for name, record in all_arrays(context).items()
        for key, array in record.items()
    }
    kinds: dict[str, Any] = {
        "metrics": {p: _records(c.state.metric_records) for p, c in contexts.items()},
        "words": {p: _records(c.state.config_records) for p, c in contexts.items()},
    }
    if places is not None:
        kinds[PLACES] = places
    words = {kind: json.dumps(value) for kind, value in kinds.items()}
    write_arrays(file, arrays, words, durable)


def _records(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(record) for name, record in records.items()}


def places_in(file: Path) -> dict[int, int]:
    """Return the rounds whose files have the memories, by partition-id, as recorded in a file.

    Raises
    ------
    DamagedMemoryError
        If it cannot be read.
    """
    with _opened(file) as stored:
        words = stored.metadata() or {}
        if PLACES in words:
            return {int(n): place for n, place in json.loads(words[PLACES]).items()}
        # A file without places is from an older version and has all clients, or is a client's own.
        metrics = json.loads(words["metrics"]).items()
        clients = (int(prefix[:-1]) for prefix, records in metrics if prefix and records)
        return dict.fromkeys(clients, round_of(file))


def archived_places(folder: Path, before_round: int) -> dict[int, int]:
    """Return the rounds whose files have an archive's memories from before a round.

    Raises
    ------
    DamagedMemoryError
        If it cannot be read.
    """
    newest = newest_before(folder, before_round)
    return places_in(newest) if newest else {}


def needed_files(folder: Path) -> set[Path]:
    """Return the files of a folder that have a client's newest memory.

    Raises
    ------
    DamagedMemoryError
        If the newest cannot be read.
    """
    newest = max(folder.glob(MEMORIES), key=round_of)
    return {newest, *(memory_file(folder, place) for place in places_in(newest).values())}


def require_readable(file: Path) -> None:
    """Check that a memory file exists and is complete.

    Raises
    ------
    DamagedMemoryError
        If it is not.
    """
    with _opened(file):
        pass


def read_memories(file: Path, contexts: Mapping[str, Context]) -> None:
    """Replace the memories of contexts by those in a file.

    Parameters
    ----------
    file : Path
        Has the memories of all of them, and possibly of others.
    contexts : mapping of str to Context
        By prefix. The prefix of a single client is empty.

    Raises
    ------
    DamagedMemoryError
        If it cannot be read, or one of the memories is missing.
    """
    with _opened(file) as stored:
        words = {kind: json.loads(text) for kind, text in (stored.metadata() or {}).items()}
        keys: dict[str, list[str]] = defaultdict(list)
        for key in stored.keys():  # noqa: SIM118 - a safetensors file is no mapping
            keys["" if "" in contexts else f"{key.partition('/')[0]}/"].append(key)
        for prefix, context in contexts.items():
            arrays = {key.removeprefix(prefix): stored.get_tensor(key) for key in keys[prefix]}
            _replace(context, arrays, words["metrics"][prefix], words["words"][prefix])


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a memory file. Any error while it is read is reported as damage."""
    try:
        with safe_open(file, framework="numpy") as stored:
            yield stored
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        remedy = "restore it from a backup, or repeat the run"
        raise DamagedMemoryError(f"{file} is damaged ({reason}); {remedy}.") from None


def _replace(
    context: Context,
    arrays: Mapping[str, NDArray[Any]],
    numbers: Mapping[str, dict[str, Any]],
    words: Mapping[str, dict[str, Any]],
) -> None:
    """Replace a context's memory by arrays, which are named by record, and other records."""
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
