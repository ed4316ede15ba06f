"""Checkpoints: the server's state, with the clients' memory beside it.

The newest checkpoint is ``server.safetensors``; that of the round before is
``server-ROUND.safetensors``. A run continues from the newest that its other files support, see
`fedkd_flwr.runs.continuing`.

A finished run keeps its checkpoint, so that more rounds can be added. It is as large as the
clients' models and optimizers. To save space, remove the folder ``checkpoint``.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedkd_flwr.files import sync, write_arrays
from fedkd_flwr.memory import ROUNDS_KEPT, TOGETHER, MemoryFolder, SharedFolder
from fedkd_flwr.runs.reading import damaged
from strategies.core.rounds import RoundRecord


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stopped; later notes take precedence in `state`.

    `sizes` are the bytes of each table and matrix, by its path in the run directory.
    """

    completed_rounds: int = 0
    state: dict[str, NDArray[Any]] = field(default_factory=dict)
    seconds: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)


def server_file(run_directory: Path) -> Path:
    """Return the file of the server's state."""
    return run_directory / "checkpoint" / "server.safetensors"


def checkpoint_files(run_directory: Path) -> list[Path]:
    """Return the files of the server's state, the newest first."""
    newest = server_file(run_directory)
    earlier = sorted(newest.parent.glob("server-*.safetensors"), reverse=True)
    return [file for file in (newest, *earlier) if file.exists()]


def notes_files(run_directory: Path) -> list[Path]:
    """Return the two files, of equal content, of state that must survive an incomplete round."""
    folder = run_directory / "checkpoint"
    return [folder / "notes.safetensors", folder / "notes-copy.safetensors"]


def clients_folder(run_directory: Path) -> Path:
    """Return the folder of the clients' memory, if it is in the run directory."""
    return run_directory / "checkpoint" / "clients"


def write_checkpoint(
    run_directory: Path, record: RoundRecord, seconds: float, appended: Iterable[str]
) -> None:
    """Write the newest checkpoint after `appended` files are on the disk; keep one before."""
    file = server_file(run_directory)
    file.parent.mkdir(exist_ok=True)
    arrays = {f"state/{name}": np.asarray(v) for name, v in record.state.items()}
    # A safetensors file needs at least one array, and `local` has none.
    arrays["completed_rounds"] = np.array([record.server_round])
    arrays["seconds"] = np.array([seconds])
    for name in appended:
        arrays[f"sizes/{name}"] = np.array([(run_directory / name).stat().st_size])
    if file.exists():
        # Until the new one has its name, the run continues from this one.
        file.replace(file.with_name(f"server-{record.server_round - 1:06d}.safetensors"))
    write_arrays(file, arrays)
    for old in checkpoint_files(run_directory)[ROUNDS_KEPT:]:
        old.unlink()


def write_notes(run_directory: Path, state: Mapping[str, NDArray[Any]]) -> None:
    """Write state that is valid even if the round is never completed, durably and twice.

    It counts what clients have released, and must not go back where one of the files is damaged.
    """
    for file in notes_files(run_directory):
        file.parent.mkdir(exist_ok=True)
        write_arrays(file, dict(state))


def read_checkpoint(run_directory: Path) -> Checkpoint:
    """Read a run's newest checkpoint and notes; it is empty if no round was completed."""
    return read_checkpoints(run_directory)[0]


def read_checkpoints(run_directory: Path) -> list[Checkpoint]:
    """Read all checkpoints of a run that can be read, the newest first, each with the notes."""
    notes = _read_notes(run_directory)
    files = checkpoint_files(run_directory)
    found, reasons = [], []
    for file in files:
        try:
            found.append(_read(file, notes))
        except (SafetensorError, OSError, KeyError, IndexError) as error:
            reasons.append(str(error))
    if reasons and not found:
        raise damaged(files[0], reasons[0], restart(run_directory))
    return found or [Checkpoint(state=notes)]


def before_the_first_round(run_directory: Path) -> Checkpoint:
    """Return the checkpoint from which a run starts over, with its notes."""
    return Checkpoint(state=_read_notes(run_directory))


def _read(file: Path, notes: dict[str, NDArray[Any]]) -> Checkpoint:
    arrays = load_file(file)
    return Checkpoint(
        completed_rounds=int(arrays["completed_rounds"][0]),
        state={**_part(arrays, "state/"), **notes},
        seconds=float(arrays["seconds"][0]),
        sizes={name: int(size[0]) for name, size in _part(arrays, "sizes/").items()},
    )


def _part(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(prefix): a for key, a in arrays.items() if key.startswith(prefix)}


def _read_notes(run_directory: Path) -> dict[str, NDArray[Any]]:
    """Return the notes; the first file is written first and is never older than the copy."""
    files = [file for file in notes_files(run_directory) if file.exists()]
    reason = ""
    for file in files:
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            reason = str(error)
    if files:
        raise damaged(files[0], reason, restart(run_directory))
    return {}


def restart(run_directory: Path) -> str:
    """Return the remedy for a run without a checkpoint that can be read."""
    return f"the run cannot be continued: remove {run_directory} and run it again"


def forget_checkpoints_after(run_directory: Path, completed_rounds: int) -> None:
    """Remove checkpoints of later rounds, and those that cannot be read, durably."""
    for file in checkpoint_files(run_directory):
        try:
            if _read(file, {}).completed_rounds <= completed_rounds:
                continue
        except (SafetensorError, OSError, KeyError, IndexError):
            pass
        file.unlink()
    sync(server_file(run_directory).parent)


def keep_last_checkpoint(run_directory: Path) -> None:
    """Remove all but the newest checkpoint and the memories of it."""
    for file in checkpoint_files(run_directory)[1:]:
        file.unlink()
    clients = clients_folder(run_directory)
    for folder in clients.glob("[0-9]*/*"):
        MemoryFolder(folder).keep_newest()
    for folder in clients.glob(f"{TOGETHER}/*"):
        SharedFolder(folder).keep_newest()


def remove_checkpoint(run_directory: Path) -> None:
    """Remove the checkpoint of a finished run to save space; it can then not be continued."""
    shutil.rmtree(run_directory / "checkpoint", ignore_errors=True)
