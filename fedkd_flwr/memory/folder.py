"""A client's memory on disk, one file for each round in which the client trained.

With a ``state-dir`` a restarted node or a resumed run can continue, with any engine. The last two
rounds are kept, because the server may repeat the newest one. A node keeps the last few runs; of
older ones a mark remains, so that it refuses to continue them.
"""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkd_flwr.files import (
    lock_file,
    make_folder,
    open_private,
    sync,
    write_arrays,
    write_text,
)
from fedkd_flwr.memory.memory import Memory
from strategies.core.flower import log


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a folder, made if missing, against other processes and threads.

    Yield whether it is locked: False only without `wait`, True on file systems without locks.
    """
    make_folder(folder)
    with open_private(folder / "lock", "ab") as file:
        yield lock_file(file, wait) is not False


MEMORIES = "round-*.safetensors"  # pattern of the files with memories, one for each round

TOGETHER = "together"
"""Name of the folder, beside those of single clients, with files for many clients."""

ROUNDS_KEPT = 2
"""Number of rounds, the newest included, whose checkpoints and memories are kept on disk."""


class DamagedMemoryError(RuntimeError):
    """A memory on disk that cannot be read. The message is one sentence."""


def round_of(file: Path) -> int:
    """Return the round of a file."""
    return int(file.stem.rpartition("-")[2])


def arrays_of_memory(memory: Memory) -> dict[str, NDArray[Any]]:
    """Return the tensors of a memory as arrays by ``group/name``."""
    return {
        f"{group}/{name}": tensor.detach().cpu().numpy()
        for group, tensors in memory.tensors.items()
        for name, tensor in tensors.items()
    }


def read_memory(file: Path, client: str = "") -> Memory:
    """Read the memory of a file with one client, or that of one client of a file with many."""
    numbers, prefix = numbers_in(file, client), f"{client}/" if client else ""
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    with safe_open(file, framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - it is no mapping
            if name.startswith(prefix):
                group, _, own = name.removeprefix(prefix).partition("/")
                # A copy, since the tensor would keep the whole file in memory.
                groups[group][own] = stored.get_tensor(name).clone()
    return Memory(groups, numbers)


def numbers_in(file: Path, client: str = "") -> dict[str, dict[str, float]]:
    """Return the numbers of a memory in a file, as `read_memory` does."""
    numbers = metadata_of(file)["numbers"]
    return numbers[client] if client else numbers


def require_readable(file: Path) -> None:
    """Check that a file exists and is complete."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise _damaged(file, str(error)) from None


@dataclass(frozen=True)
class RoundFiles:
    """Files with memories in a folder, one for each round."""

    path: Path

    def files(self) -> list[Path]:
        """Return the files in the order of their rounds."""
        return sorted(self.path.glob(MEMORIES))

    def file(self, server_round: int) -> Path:
        """Return the file of a round."""
        return self.path / MEMORIES.replace("*", f"{server_round:06d}")

    def newest(self, before_round: float = math.inf) -> Path | None:
        """Return the newest file from before a round, if there is one."""
        older = [file for file in self.files() if round_of(file) < before_round]
        return older[-1] if older else None


# ---- Files with many clients -------------------------------------------------------------


class SharedFolder(RoundFiles):
    """The files with the memories of all clients of one run, in ``STATE-DIR/together/RUN``."""

    @classmethod
    def of_run(cls, state_dir: Path, run_id: str) -> "SharedFolder":
        """Return the folder of a run."""
        return cls(state_dir / TOGETHER / run_id)

    def write(self, memories: Mapping[int, Memory], server_round: int) -> None:
        """Write the memories of clients that trained in a round, and remove those not needed."""
        of_round = {
            str(client): memory
            for client, memory in sorted(memories.items())
            if memory.server_round == server_round and memory.holds_state
        }
        if not of_round:
            return
        before = self.newest(server_round)
        rounds = {**self.rounds(before), **dict.fromkeys(of_round, server_round)}
        arrays = {
            f"{client}/{name}": array
            for client, memory in of_round.items()
            for name, array in arrays_of_memory(memory).items()
        }
        numbers = {client: memory.numbers for client, memory in of_round.items()}
        metadata = {"numbers": json.dumps(numbers), "rounds": json.dumps(rounds)}
        make_folder(self.path)
        write_arrays(self.file(server_round), arrays, metadata)
        # Later rounds are from before the run was continued from an earlier round.
        self._keep([file for file in self.files() if round_of(file) <= server_round][-ROUNDS_KEPT:])

    def keep_newest(self) -> None:
        """Remove all files but the newest, and those that it names."""
        self._keep(self.files()[-1:])

    def rounds(self, file: Path | None) -> dict[str, int]:
        """Return the round of each client's newest memory, as a file names them."""
        return metadata_of(file).get("rounds", {}) if file else {}

    def round_of_client(self, client: str, before_round: float) -> int:
        """Return the round of a client's newest memory from before a round; 0 for none."""
        return self.rounds(self.newest(before_round)).get(client, 0)

    def require_readable(self, before_round: float) -> None:
        """Check that the newest memory of every client from before a round can be read."""
        for known in set(self.rounds(self.newest(before_round)).values()):
            require_readable(self.file(known))

    def _keep(self, files: list[Path]) -> None:
        """Remove all files but some, and those that they name."""
        needed = {self.file(known) for file in files for known in self.rounds(file).values()}
        for file in set(self.files()) - needed - set(files):
            file.unlink()


def metadata_of(file: Path) -> dict[str, Any]:
    """Return what a file holds besides arrays. Do not change it."""
    try:
        known = file.stat()
    except OSError as error:
        raise _damaged(file, str(error)) from None
    return _metadata(file, (known.st_ino, known.st_size, known.st_mtime_ns))


# All clients of a process read the header of the same file.
@lru_cache(maxsize=4)
def _metadata(file: Path, version: tuple[int, ...]) -> dict[str, Any]:
    require_readable(file)
    with safe_open(file, framework="numpy") as stored:
        texts = stored.metadata() or {}
    try:
        metadata = {name: json.loads(text) for name, text in texts.items()}
        metadata["numbers"]
    except (ValueError, KeyError) as error:
        raise _damaged(file, f"it lacks {error}") from None
    return metadata


def _damaged(file: Path, reason: str) -> DamagedMemoryError:
    remedy = "restore it from a backup, or repeat the run"
    return DamagedMemoryError(f"{file} is damaged ({reason}); {remedy}.")


RUNS_KEPT = 5
"""Number of runs whose memory is kept on disk, if the node config has no ``keep-runs``."""

FORGOTTEN = "forgotten"  # name of the file that marks the folder of a run whose memory was removed

ORDER = "runs.txt"
"""Name of the file, beside a client's folders of runs, with their names in the order of use."""


class ForgottenRunError(RuntimeError):
    """A run that continues after the node has removed its memory of it."""


class MemoryFolder(RoundFiles):
    """The files with one client's memory of one run, in ``STATE-DIR/PARTITION-ID/RUN``."""

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

    def write(self, memory: Memory, replaceable: Collection[Path] | None = None) -> None:
        """Write a memory as that of its round, and remove `replaceable` older ones; see `sync`."""
        newest = self.file(memory.server_round)
        make_folder(self.path.parents[1])  # the state-dir; `sync` waits for folders below it
        self.path.mkdir(parents=True, exist_ok=True)
        numbers = {"numbers": json.dumps(memory.numbers)}
        write_arrays(newest, arrays_of_memory(memory), numbers, durable=True)
        (self.path / FORGOTTEN).unlink(missing_ok=True)
        # Memories of later rounds are from before the run was continued from an earlier round.
        files = self.files()
        own = [file for file in files if file <= newest]
        for file in set(files).difference(own[-ROUNDS_KEPT:]):
            if replaceable is None or file in replaceable:
                file.unlink()

    def last_round(self, before_round: float) -> int:
        """Return the last round before another that has a memory on disk; 0 for none."""
        rounds = map(round_of, self.files())
        own = max((known for known in rounds if known < before_round), default=0)
        return max(own, self._together.round_of_client(self._client, before_round))

    def sync(self, server_round: int) -> None:
        """Wait until the memory of a round is on the disk, and the names of its folders."""
        for path in (self.file(server_round), self.path, *self.path.parents[:2]):
            sync(path)

    def read(self, before_round: float) -> Memory | None:
        """Return the newest memory from before a round, or None.

        Raises `ForgottenRunError` if it was removed for later runs, or `DamagedMemoryError`.
        """
        place = self._newest(before_round)
        return read_memory(*place) if place else None

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the numbers of the newest memory; empty if there is none."""
        place = self._newest(math.inf)
        return numbers_in(*place) if place else {}

    def require_readable(self, before_round: float) -> None:
        """Check that the newest memory from before a round can be read."""
        if file := self.newest(before_round):
            require_readable(file)

    def _newest(self, before_round: float) -> tuple[Path, str] | None:
        """Return the newest memory from before a round: a file, and the client in a shared one."""
        file, shared = self.newest(before_round), self._together
        own = (file, "") if file else None
        known = shared.round_of_client(self._client, before_round)
        if not known or (file and round_of(file) > known):
            return own
        together = shared.file(known), self._client
        if own is None or round_of(own[0]) < known:
            return together
        # Two engines have written the same round: more starts of the run decide.
        of_own, of_shared = (Memory(numbers=numbers_in(*place)) for place in (own, together))
        return own if of_own.start > of_shared.start else together

    def newest(self, before_round: float = math.inf) -> Path | None:
        """Return the client's own file with the newest memory from before a round."""
        if (self.path / FORGOTTEN).exists():
            raise ForgottenRunError(
                f"this node has removed its memory of run {self.path.name} for later runs "
                f"(keep-runs); remove {self.path} to start over"
            )
        return super().newest(before_round)

    def keep_newest(self) -> None:
        """Remove everything but the newest memory."""
        newest = self.newest()
        for file in self.files():
            if file != newest:
                file.unlink()

    def clear(self) -> None:
        """Remove all files."""
        for file in self.files():
            file.unlink()


# ---- The last few runs -------------------------------------------------------------------


def forget_old_runs(current: MemoryFolder, keep: int) -> None:
    """Remove the memories of all but the last `keep` runs of a client; 0 for all.

    The current one is kept and counted, and so is a run that another process serves now.
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
        set(runs) - {current}, key=lambda path: (places.get(path.name, -1), path.stat().st_mtime)
    )
    return others[: max(0, len(others) + 1 - keep)] if keep else []


def _note_order(current: Path) -> list[str]:
    """Record that a run is the latest of a client; return all recorded runs, the latest last."""
    file = current.parent / ORDER
    before = file.read_text(encoding="utf-8").split() if file.exists() else []
    if before[-1:] == [current.name]:
        return before
    order = [*(name for name in before if name != current.name), current.name]
    write_text(file, "\n".join(order) + "\n", durable=True)
    return order
