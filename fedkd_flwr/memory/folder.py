"""A client's memory on disk, one file for each round in which the client trained.

Flower's context exists as long as its SuperNode or simulation. With a ``state-dir`` a client also
writes its memory to ``STATE-DIR/PARTITION-ID/RUN/``, so that a restarted node or a resumed run can
continue, with any engine. The client's last two rounds are kept, because the server may have to
repeat the newest one.

Each run has its own folder, and a node keeps the last few runs. The memory of older runs is
removed, but a mark remains: a node that is asked to continue such a run refuses instead of
starting over.
"""

import json
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkd_flwr.files import make_folder, sync, write_arrays, write_text
from fedkd_flwr.memory.lock import locked
from fedkd_flwr.memory.memory import Memory
from strategies.core.flower import log

MEMORIES = "round-*.safetensors"
"""Pattern of the files with a client's memory, one for each of its rounds."""

PROGRESS = "progress-*.safetensors"
"""Pattern of the files with a client's progress within a long message, one for each round."""

ROUNDS_KEPT = 2
"""Number of rounds, the newest included, whose checkpoints and memories are kept on disk."""

RUNS_KEPT = 5
"""Number of runs whose memory is kept on disk, if the node config has no ``keep-runs``."""

FORGOTTEN = "forgotten"
"""Name of the file that marks the folder of a run whose memory was removed."""

ORDER = "runs.txt"
"""Name of the file, beside a client's folders of runs, with their names in the order of use."""


class DamagedMemoryError(RuntimeError):
    """A memory on disk that cannot be read. The message is one sentence."""


class ForgottenRunError(RuntimeError):
    """A run that continues after the node has removed its memory of it."""


@dataclass(frozen=True)
class MemoryFolder:
    """The files with one client's memory of one run.

    Attributes
    ----------
    path : Path
        ``STATE-DIR/PARTITION-ID/RUN``. Created when something is written.
    """

    path: Path

    @classmethod
    def of_run(cls, state_dir: Path, run_id: str) -> list["MemoryFolder"]:
        """Return the folders of all clients that remember a run on this machine."""
        return [cls(path) for path in sorted(state_dir.glob(f"[0-9]*/{run_id}"))]

    # ---- The memory after a round ----------------------------------------------------

    def write(
        self,
        memory: Memory,
        durable: bool = False,
        replaceable: Collection[Path] | None = None,
    ) -> None:
        """Write a memory as that of its round, completely or not at all; `sync` makes it last.

        Parameters
        ----------
        memory : Memory
            With its round noted.
        durable : bool
            Whether the content is on the disk before it is moved into place and older memories
            are removed; see `fedkd_flwr.files.replacing`.
        replaceable : collection of Path, optional
            Memories that may be removed; by default all.
        """
        newest = self.file(memory.server_round)
        self._write(newest, memory, durable)
        (self.path / FORGOTTEN).unlink(missing_ok=True)
        self.remove_progress(memory.server_round)
        # Memories of later rounds are from before the run was continued from an earlier round.
        files = self.files()
        own = [file for file in files if file <= newest]
        for file in set(files).difference(own[-ROUNDS_KEPT:]):
            if replaceable is None or file in replaceable:
                file.unlink()

    def files(self) -> list[Path]:
        """Return the files with memories, in the order of their rounds."""
        return sorted(self.path.glob(MEMORIES))

    def last_round(self, before_round: float) -> int:
        """Return the last round before another that has a memory here; 0 for none."""
        rounds = map(round_of, self.path.glob(MEMORIES))
        return max((known for known in rounds if known < before_round), default=0)

    def sync(self, server_round: int) -> None:
        """Wait until the memory of a round is on the disk, and the names of its folders."""
        for path in (self.file(server_round), self.path, *self.path.parents[:2]):
            sync(path)

    def read(self, before_round: float) -> Memory | None:
        """Return the newest memory from before a round, or None.

        Raises
        ------
        ForgottenRunError
            If it was removed to make room for later runs.
        DamagedMemoryError
            If it cannot be read.
        """
        file = self.newest(before_round)
        return read_memory(file) if file else None

    def newest(self, before_round: float = math.inf) -> Path | None:
        """Return the file with the newest memory from before a round, if there is one.

        Raises
        ------
        ForgottenRunError
            If it was removed to make room for later runs.
        """
        if (self.path / FORGOTTEN).exists():
            raise ForgottenRunError(
                f"this node has removed its memory of run {self.path.name} for later runs "
                f"(keep-runs); remove {self.path} to start over"
            )
        older = (file for file in self.path.glob(MEMORIES) if round_of(file) < before_round)
        return max(older, key=round_of, default=None)

    def keep_newest(self) -> None:
        """Remove everything but the newest memory."""
        self.remove_progress()
        newest = self.newest()
        for file in self.path.glob(MEMORIES):
            if file != newest:
                file.unlink()

    def clear(self) -> None:
        """Remove all files."""
        for file in self.path.glob(MEMORIES):
            file.unlink()
        self.remove_progress()

    def file(self, server_round: int) -> Path:
        """Return the file of a round's memory."""
        return self.path / MEMORIES.replace("*", f"{server_round:06d}")

    # ---- Progress within a long message ----------------------------------------------

    def write_progress(self, server_round: int, progress: Memory) -> None:
        """Write the progress of a message that takes long, such as PersFL's second stage.

        A memory is written at the end of a message, so an interruption would lose hours. The
        progress has a file of its own, because a resumed run repeats the training of the round,
        which writes the memory of the round anew. If the progress cannot be written, the message
        continues without it.
        """
        try:
            self._write(self._progress_file(server_round), progress, durable=False)
        except OSError as error:
            log(WARNING, "The progress of this message cannot be saved: %s", error)

    def read_progress(self, server_round: int) -> Memory | None:
        """Return the progress of an interrupted message; None if there is none to read."""
        file = self._progress_file(server_round)
        if not file.exists():
            return None
        try:
            return read_memory(file)
        except DamagedMemoryError as error:
            log(WARNING, "The message starts over: %s", error)
            return None

    def remove_progress(self, before_round: float = math.inf) -> None:
        """Remove the progress of all rounds before a round."""
        for file in self.path.glob(PROGRESS):
            if round_of(file) < before_round:
                file.unlink(missing_ok=True)

    def _progress_file(self, server_round: int) -> Path:
        return self.path / PROGRESS.replace("*", f"{server_round:06d}")

    def _write(self, file: Path, memory: Memory, durable: bool) -> None:
        make_folder(self.path.parents[1])  # the state-dir; `sync` waits for folders below it
        self.path.mkdir(parents=True, exist_ok=True)
        arrays = {
            f"{group}/{name}": tensor.detach().cpu().numpy()
            for group, tensors in memory.tensors.items()
            for name, tensor in tensors.items()
        }
        write_arrays(file, arrays, {"numbers": json.dumps(memory.numbers)}, durable)


def read_numbers(file: Path) -> dict[str, dict[str, float]]:
    """Read the numbers of a memory alone.

    Raises
    ------
    DamagedMemoryError
        If they cannot be read.
    """
    try:
        with safe_open(file, framework="numpy") as stored:
            numbers: dict[str, dict[str, float]] = json.loads((stored.metadata() or {})["numbers"])
            return numbers
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _damaged(file, str(error)) from None


def round_of(file: Path) -> int:
    """Return the round of a file."""
    return int(file.stem.rpartition("-")[2])


def read_memory(file: Path) -> Memory:
    """Read a memory.

    Raises
    ------
    DamagedMemoryError
        If it cannot be read.
    """
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    try:
        with safe_open(file, framework="numpy") as stored:
            numbers = json.loads((stored.metadata() or {})["numbers"])
            for key in stored.keys():  # noqa: SIM118 - a safetensors file is no mapping
                group, _, name = key.partition("/")
                groups[group][name] = torch.from_numpy(stored.get_tensor(key))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise _damaged(file, reason) from None
    return Memory(groups, numbers)


def require_readable(file: Path) -> None:
    """Check that a memory file exists and is complete.

    Raises
    ------
    DamagedMemoryError
        If it is not.
    """
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise _damaged(file, str(error)) from None


def _damaged(file: Path, reason: str) -> DamagedMemoryError:
    remedy = "restore it from a backup, or repeat the run"
    return DamagedMemoryError(f"{file} is damaged ({reason}); {remedy}.")


# ---- The last few runs -------------------------------------------------------------------


def forget_old_runs(current: MemoryFolder, keep: int) -> None:
    """Remove the memories of all but the last few runs of a client.

    Parameters
    ----------
    current : MemoryFolder
        The folder of the current run, next to those of other runs. It is kept, and counts as one
        of them.
    keep : int
        Number of runs to keep, the latest in the recorded order; 0 for all. Runs of older versions
        have none; they come first, by modification time. A run that another process serves now is
        kept too.
    """
    with locked(current.path.parent):
        for path in _outdated(current.path, keep):
            with locked(path, wait=False) as is_unused:
                if is_unused:
                    told = "Removing the memory of run %s: this node keeps %d runs (keep-runs)"
                    log(WARNING, told, path.name, keep)
                    (path / FORGOTTEN).touch()
                    MemoryFolder(path).clear()


def _outdated(current: Path, keep: int) -> list[Path]:
    """Record that a run is the latest of a client; return the folders of those to remove."""
    order = _note_order(current)
    runs = [path for path in current.parent.iterdir() if next(path.glob(MEMORIES), None)]
    places = {name: place for place, name in enumerate(order)}
    others = sorted(
        set(runs) - {current},
        key=lambda path: (places.get(path.name, -1), path.stat().st_mtime),
    )
    return others[: max(0, len(others) + 1 - keep)] if keep else []


def _note_order(current: Path) -> list[str]:
    """Record that a run is the latest of a client; return all recorded runs, the latest last.

    The clock of a node may be wrong, and copying a folder changes the times of its files.
    """
    file = current.parent / ORDER
    before = file.read_text(encoding="utf-8").split() if file.exists() else []
    if before[-1:] == [current.name]:
        return before
    order = [*(name for name in before if name != current.name), current.name]
    write_text(file, "\n".join(order) + "\n", durable=True)
    return order
