"""How the files of a run are written, synced, and brought back to an earlier round."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.files import replacing, sync, write_text
from fedkd_flwr.memory import MemoryFolder
from fedkd_flwr.runs.checkpoint import forget_checkpoints_after
from fedkd_flwr.runs.folders import absolute
from fedkd_flwr.runs.reading import Row, Run

DISK_WAITS = 16
"""Threads that wait for the disk at the same time, which then writes in one go."""


def begin_to_continue(run: Run, sizes: Mapping[str, int]) -> None:
    """Drop what is newer than the checkpoint, and record how the run is continued.

    It is done when the first new round is complete, so a failed attempt changes nothing.

    Parameters
    ----------
    run : Run
        Up to the round of the checkpoint, with the description to record; see `Run.continued`.
    sizes : mapping of str to int
        Bytes of each table at that round; empty in runs of older versions, and for round 0.

    Raises
    ------
    OSError
        If the disk refuses to write.
    """
    completed = run.until or 0
    # In this order, a power cut in between leaves a run that continues after the same round.
    forget_checkpoints_after(run.path, completed)
    (run.path / "summary.json").unlink(missing_ok=True)
    sync(run.path)
    write_json(run.path / "config.json", run.description)
    tables = {"rounds": run.round_rows, "clients": run.client_rows, **run.further_rows}
    for name, rows in tables.items():
        _cut_table(run.path / f"{name}.jsonl", rows, sizes)
    if any(len(matrix) > completed for matrix in Run(run.path).gathered_matrices().values()):
        write_matrices(run.path, run.matrices)
    for file in (*(run.path / "matrices").glob("*.npy"), *global_models(run.path)):
        if int(file.stem.rpartition("-")[2]) > completed:
            file.unlink()


def _cut_table(file: Path, rows: Iterable[Row], sizes: Mapping[str, int]) -> None:
    if not sizes:
        write_text(file, as_lines(rows), durable=True)
    elif file.exists():
        os.truncate(file, sizes.get(file.name, 0))


def sync_round(run_directory: Path, server_round: int) -> None:
    """Wait until the files of a round, and their names, are on the disk.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    parts = [*(run_directory / "matrices").glob("*.npy"), *global_models(run_directory)]
    of_round = (file for file in parts if file.stem.endswith(f"-{server_round:06d}"))
    folders = (run_directory, run_directory / "matrices", run_directory / "models")
    for path in (*run_directory.glob("*.jsonl"), *of_round, *filter(Path.exists, folders)):
        sync(path)


def sync_memories(state_dir: str, run_id: str, clients: Iterable[int], server_round: int) -> None:
    """Wait until the memories of a round, where they are on this machine, are on the disk.

    Parameters
    ----------
    state_dir : str
        Folder of the clients' memories; empty for none.
    run_id : str
        The run.
    clients : iterable of int
        Partition-ids of the clients that took part.
    server_round : int
        The round.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    if not state_dir:
        return
    folders = [MemoryFolder(absolute(state_dir) / str(n) / run_id) for n in clients]
    written = [folder for folder in folders if folder.file(server_round).exists()]
    with ThreadPoolExecutor(DISK_WAITS) as pool:
        list(pool.map(lambda folder: folder.sync(server_round), written))


def global_models(run_directory: Path) -> list[Path]:
    """Return the files of the global models that a run has stored."""
    return list((run_directory / "models").glob("global-*.safetensors"))


def write_matrices(run_directory: Path, matrices: Mapping[str, NDArray[Any]]) -> None:
    """Write ``matrices.npz`` durably."""
    with (
        replacing(run_directory / "matrices.npz", durable=True) as temporary,
        temporary.open("wb") as file,
    ):
        np.savez_compressed(file, **matrices)  # type: ignore[arg-type]


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object durably."""
    write_text(file, json.dumps(content, indent=2, allow_nan=False) + "\n", durable=True)


def as_lines(rows: Iterable[Row]) -> str:
    """Return rows as JSON lines; NaN and infinite losses become null."""
    return "".join(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows)


def _finite(row: Mapping[str, Any]) -> Row:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
