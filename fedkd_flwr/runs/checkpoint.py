"""What a run continues from: the server's state, and the clients' memory beside it.

A finished run keeps its checkpoint, so that it can be given more rounds. It is as large as the
clients' models and optimizers; whoever needs the room removes the folder ``checkpoint``.
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
        The strategy's own state; what it had written down since goes before.
    seconds : float
        How long the run had taken then, all its legs together.
    """

    completed_rounds: int = 0
    state: dict[str, NDArray[Any]] = field(default_factory=dict)
    seconds: float = 0.0


def server_file(run_directory: Path) -> Path:
    """Return the file of the server's state."""
    return run_directory / "checkpoint" / "server.safetensors"


def notes_file(run_directory: Path) -> Path:
    """Return the file of what must not be forgotten with an incomplete round."""
    return run_directory / "checkpoint" / "notes.safetensors"


def clients_folder(run_directory: Path) -> Path:
    """Return the folder of the clients' memory, where it is part of the run directory."""
    return run_directory / "checkpoint" / "clients"


def write_checkpoint(run_directory: Path, strategy: "PersonalizedStrategy", seconds: float) -> None:
    """Write a strategy's state, in place of the checkpoint before, whole or not at all."""
    file = server_file(run_directory)
    file.parent.mkdir(exist_ok=True)
    arrays = {f"state/{name}": np.ascontiguousarray(v) for name, v in strategy.state().items()}
    # A safetensors file cannot be without arrays, and `local` has none.
    arrays["completed_rounds"] = np.array([strategy.completed_rounds])
    arrays["seconds"] = np.array([seconds])
    write_arrays(file, arrays)


def write_notes(run_directory: Path, state: Mapping[str, NDArray[Any]]) -> None:
    """Write a part of a strategy's state that holds even if the round is never completed."""
    file = notes_file(run_directory)
    file.parent.mkdir(exist_ok=True)
    write_arrays(file, {name: np.ascontiguousarray(array) for name, array in state.items()})


def read_checkpoint(run_directory: Path) -> Checkpoint:
    """Read a run directory's checkpoint and notes; an empty one if no round was completed.

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
            # Runs from before legs were summed have none.
            seconds=float(arrays.get("seconds", np.zeros(1))[0]),
        )
    except (SafetensorError, OSError, KeyError, IndexError) as error:
        remedy = f"the run cannot go on: remove {run_directory} and do it again"
        raise damaged(file, str(error), remedy) from None


def _part(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(prefix): a for key, a in arrays.items() if key.startswith(prefix)}


def keep_last_memories(run_directory: Path) -> None:
    """Remove all but the newest memory of every client, where they are in the run directory.

    While a run goes on, two are kept, since the newest round may have to be repeated, and notes on
    what is unfinished.
    """
    for notes in clients_folder(run_directory).rglob(NOTES):
        notes.unlink()
    memories = set(clients_folder(run_directory).rglob(MEMORIES))
    needed = map(needed_files, {memory.parent for memory in memories})
    for memory in memories.difference(*needed):
        memory.unlink()


def remove_checkpoint(run_directory: Path) -> None:
    """Give the room of a finished run's checkpoint back; the run can then not be continued."""
    shutil.rmtree(run_directory / "checkpoint", ignore_errors=True)
