"""Checkpoints: the server's state, with the clients' memory beside it.

A finished run keeps its checkpoint, so that more rounds can be added. It is as large as the
clients' models and optimizers. To save space, remove the folder ``checkpoint``.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedkd_flwr.clients.memory_files import MEMORIES, needed_files
from fedkd_flwr.clients.unfinished import NOTES
from fedkd_flwr.files import write_arrays
from fedkd_flwr.runs.reading import damaged

if TYPE_CHECKING:
    from strategies.base import PersonalizedStrategy


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stopped.

    Attributes
    ----------
    completed_rounds : int
        Rounds of the run that are complete; 0 before the first.
    state : dict of str to ndarray
        The strategy's state. Notes that it wrote later take precedence.
    seconds : float
        Duration of the run so far, over all processes that continued it.
    """

    completed_rounds: int = 0
    state: dict[str, NDArray[Any]] = field(default_factory=dict)
    seconds: float = 0.0


def server_file(run_directory: Path) -> Path:
    """Return the file of the server's state."""
    return run_directory / "checkpoint" / "server.safetensors"


def notes_file(run_directory: Path) -> Path:
    """Return the file of state that must survive an incomplete round."""
    return run_directory / "checkpoint" / "notes.safetensors"


def clients_folder(run_directory: Path) -> Path:
    """Return the folder of the clients' memory, if it is in the run directory."""
    return run_directory / "checkpoint" / "clients"


def write_checkpoint(run_directory: Path, strategy: "PersonalizedStrategy", seconds: float) -> None:
    """Replace the checkpoint by a strategy's state, atomically."""
    file = server_file(run_directory)
    file.parent.mkdir(exist_ok=True)
    arrays = {f"state/{name}": np.ascontiguousarray(v) for name, v in strategy.state().items()}
    # A safetensors file needs at least one array, and `local` has none.
    arrays["completed_rounds"] = np.array([strategy.completed_rounds])
    arrays["seconds"] = np.array([seconds])
    write_arrays(file, arrays)


def write_notes(run_directory: Path, state: Mapping[str, NDArray[Any]]) -> None:
    """Write state that is valid even if the round is never completed."""
    file = notes_file(run_directory)
    file.parent.mkdir(exist_ok=True)
    write_arrays(file, {name: np.ascontiguousarray(array) for name, array in state.items()})


def read_checkpoint(run_directory: Path) -> Checkpoint:
    """Read a run's checkpoint and notes; the checkpoint is empty if no round was completed.

    Raises
    ------
    DamagedRunError
        If it cannot be read.
    """
    file = server_file(run_directory)
    try:
        notes = load_file(path) if (path := notes_file(run_directory)).exists() else {}
        if not file.exists():
            return Checkpoint(state=notes)
        arrays = load_file(file)
        return Checkpoint(
            completed_rounds=int(arrays["completed_rounds"][0]),
            state={**_part(arrays, "state/"), **notes},
            # Older runs did not record it.
            seconds=float(arrays.get("seconds", np.zeros(1))[0]),
        )
    except (SafetensorError, OSError, KeyError, IndexError) as error:
        remedy = f"the run cannot be continued: remove {run_directory} and run it again"
        raise damaged(file, str(error), remedy) from None


def _part(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(prefix): a for key, a in arrays.items() if key.startswith(prefix)}


def keep_last_memories(run_directory: Path) -> None:
    """Remove all but the newest memory of every client in the run directory.

    During a run, two memories are kept, since the newest round may have to be repeated.
    """
    for notes in clients_folder(run_directory).rglob(NOTES):
        notes.unlink()
    memories = set(clients_folder(run_directory).rglob(MEMORIES))
    needed = map(needed_files, {memory.parent for memory in memories})
    for memory in memories.difference(*needed):
        memory.unlink()


def remove_checkpoint(run_directory: Path) -> None:
    """Remove the checkpoint of a finished run to save space; it can then not be continued."""
    shutil.rmtree(run_directory / "checkpoint", ignore_errors=True)
