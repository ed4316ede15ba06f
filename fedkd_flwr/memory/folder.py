"""A client's memory on disk, one file for each round in which the client trained.

Flower's context exists as long as its SuperNode or simulation. With a ``state-dir`` a client also
writes its memory to ``STATE-DIR/PARTITION-ID/RUN/``, so that a restarted node or a resumed run can
continue, with any engine. The client's last two rounds are kept, because the server may have to
repeat the newest one. A process that serves all clients writes one file for all of them, see
`fedkd_flwr.memory.round_files`; every engine reads both.

Each run has its own folder, and a node keeps the last few runs. The memory of older runs is
removed, but a mark remains: a node that is asked to continue such a run refuses instead of
starting over.
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path

from fedkd_flwr.files import make_folder, sync, write_arrays, write_text
from fedkd_flwr.memory.lock import locked
from fedkd_flwr.memory.memory import Memory
from fedkd_flwr.memory.round_files import (
    MEMORIES,
    ROUNDS_KEPT,
    DamagedMemoryError,
    SharedFolder,
    arrays_of_memory,
    contents_of,
    read_memory,
    require_readable,
    round_of,
)
from strategies.core.flower import log

PROGRESS = "progress-*.safetensors"
"""Pattern of the files with a client's progress within a long message, one for each round."""

RUNS_KEPT = 5
"""Number of runs whose memory is kept on disk, if the node config has no ``keep-runs``."""

FORGOTTEN = "forgotten"
"""Name of the file that marks the folder of a run whose memory was removed."""

ORDER = "runs.txt"
"""Name of the file, beside a client's folders of runs, with their names in the order of use."""


class ForgottenRunError(RuntimeError):
    """A run that continues after the node has removed its memory of it."""


@dataclass(frozen=True)
class MemoryFolder:
    """The files with one client's memory of one run.

    They lie in ``STATE-DIR/PARTITION-ID/RUN``, which is made when something is written.
    """

    path: Path

    @classmethod
    def of_run(cls, state_dir: Path, run_id: str) -> list["MemoryFolder"]:
        """Return the folders of all clients that remember a run on this machine."""
        return [cls(path) for path in sorted(state_dir.glob(f"[0-9]*/{run_id}"))]

    @property
    def _together(self) -> SharedFolder:
        return SharedFolder.of_run(self.path.parents[1], self.path.name)

    @property
    def _client(self) -> str:
        return self.path.parent.name

    # ---- The memory after a round ----------------------------------------------------

    def write(
        self,
        memory: Memory,
        replaceable: Collection[Path] | None = None,
    ) -> None:
        """Write a memory as that of its round, completely or not at all; `sync` makes it last.

        `replaceable` are the memories that may be removed; by default all.
        """
        newest = self.file(memory.server_round)
        self._write(newest, memory, durable=True)
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
        """Return the last round before another that has a memory on disk; 0 for none."""
        rounds = map(round_of, self.path.glob(MEMORIES))
        own = max((known for known in rounds if known < before_round), default=0)
        return max(own, self._together.round_of_client(self._client, before_round))

    def sync(self, server_round: int) -> None:
        """Wait until the memory of a round is on the disk, and the names of its folders."""
        for path in (self.file(server_round), self.path, *self.path.parents[:2]):
            sync(path)

    def read(self, before_round: float) -> Memory | None:
        """Return the newest memory from before a round, or None.

        Raises `ForgottenRunError` if it was removed to make room for later runs. Raises
        `DamagedMemoryError` if it cannot be read.
        """
        own, shared = self._newest(before_round)
        if shared:
            return self._together.read(self._client, shared)
        return read_memory(own) if own else None

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the numbers of the newest memory; empty if there is none.

        Raises `ForgottenRunError` or `DamagedMemoryError` as of `read`.
        """
        own, shared = self._newest(math.inf)
        if shared:
            return self._together.numbers(self._client, shared)
        return contents_of(own).metadata["numbers"] if own else {}

    def require_readable(self, before_round: float) -> None:
        """Check that the newest memory from before a round can be read.

        Raises `ForgottenRunError` or `DamagedMemoryError` as of `read`.
        """
        if file := self.newest(before_round):
            require_readable(file)

    def _newest(self, before_round: float) -> tuple[Path | None, int]:
        """Return the newest memory from before a round: its own file, or the round of a shared one.

        Both may have a memory of one round if two engines have served the run. The one that was
        written after more starts of the run is then the newer one.
        """
        own, shared = self.newest(before_round), self._together
        known = shared.round_of_client(self._client, before_round)
        if not known:
            return own, 0
        if own is None or known != round_of(own):
            return (own, 0) if own and round_of(own) > known else (None, known)
        of_own = Memory(numbers=contents_of(own).metadata["numbers"])
        of_shared = Memory(numbers=shared.numbers(self._client, known))
        return (own, 0) if of_own.start > of_shared.start else (None, known)

    def newest(self, before_round: float = math.inf) -> Path | None:
        """Return the client's own file with the newest memory from before a round, if there is one.

        Raises `ForgottenRunError` if it was removed to make room for later runs.
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
        numbers = {"numbers": json.dumps(memory.numbers)}
        write_arrays(file, arrays_of_memory(memory), numbers, durable)


# ---- The last few runs -------------------------------------------------------------------


def forget_old_runs(current: MemoryFolder, keep: int) -> None:
    """Remove the memories of all but the last `keep` runs of a client; 0 for all.

    The latest count, in the recorded order; runs of older versions have none, and come first, by
    modification time. The current one is kept and counted, and so is a run that another process
    serves now.
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
