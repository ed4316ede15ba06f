"""Files with memories: arrays by group and name, numbers as metadata, in the safetensors format.

A file has the memory of one client. Where one process has all clients, it has those that trained in
a round, and names the file with the newest memory of every other client.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkd_flwr.files import DTYPES, make_folder, write_arrays
from fedkd_flwr.memory.memory import Memory

MEMORIES = "round-*.safetensors"
"""Pattern of the files with memories, one for each round."""

TOGETHER = "together"
"""Name of the folder, beside those of single clients, with files for many clients."""

ROUNDS_KEPT = 2
"""Number of rounds, the newest included, whose checkpoints and memories are kept on disk."""

NUMPY_NAMES = {stored: name for name, stored in DTYPES.items()}
"""Names in NumPy of the types of stored arrays."""


class DamagedMemoryError(RuntimeError):
    """A memory on disk that cannot be read. The message is one sentence."""


class Contents(NamedTuple):
    """Metadata of a file, entries of arrays by the two parts of their names, and first byte."""

    metadata: dict[str, Any]
    arrays: dict[str, dict[str, Any]]
    start: int


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


def read_memory(file: Path) -> Memory:
    """Read the memory of a file with one client."""
    contents = contents_of(file)
    groups = {group: _tensors(file, own) for group, own in contents.arrays.items()}
    return Memory(groups, contents.metadata["numbers"])


def require_readable(file: Path) -> None:
    """Check that a file exists and is complete."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise _damaged(file, str(error)) from None


# ---- Files with many clients -------------------------------------------------------------


@dataclass(frozen=True)
class SharedFolder:
    """The files with the memories of all clients of one run, in ``STATE-DIR/together/RUN``."""

    path: Path

    @classmethod
    def of_run(cls, state_dir: Path, run_id: str) -> "SharedFolder":
        """Return the folder of a run."""
        return cls(state_dir / TOGETHER / run_id)

    def write(self, memories: Mapping[int, Memory], server_round: int) -> None:
        """Write the memories of clients that trained in a round, and remove those not needed.

        Raises `OSError` if the disk refuses, and `DamagedMemoryError`.
        """
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

    def rounds(self, file: Path | None) -> dict[str, int]:
        """Return the round of each client's newest memory, as a file names them."""
        return contents_of(file).metadata.get("rounds", {}) if file else {}

    def round_of_client(self, client: str, before_round: float) -> int:
        """Return the round of a client's newest memory from before a round; 0 for none."""
        return self.rounds(self.newest(before_round)).get(client, 0)

    def numbers(self, client: str, server_round: int) -> dict[str, dict[str, float]]:
        """Return the numbers of a client's memory of a round."""
        numbers: dict[str, dict[str, dict[str, float]]]
        numbers = contents_of(self.file(server_round)).metadata["numbers"]
        return numbers[client]

    def read(self, client: str, server_round: int) -> Memory:
        """Return a client's memory of a round."""
        return read_one_of_many(self.file(server_round), client)

    def require_readable(self, before_round: float) -> None:
        """Check that the newest memory of every client from before a round can be read."""
        for known in set(self.rounds(self.newest(before_round)).values()):
            require_readable(self.file(known))

    def _keep(self, files: list[Path]) -> None:
        """Remove all files but some, and those that they name."""
        needed = {self.file(known) for file in files for known in self.rounds(file).values()}
        for file in set(self.files()) - needed - set(files):
            file.unlink()


def read_one_of_many(file: Path, client: str) -> Memory:
    """Read the memory of one client of a file with many."""
    contents = contents_of(file)
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in _tensors(file, contents.arrays.get(client, {})).items():
        group, _, own = name.partition("/")
        groups[group][own] = tensor
    return Memory(groups, contents.metadata["numbers"][client])


# ---- Contents of a file ------------------------------------------------------------------


def contents_of(file: Path) -> Contents:
    """Return what the header of a file names. Do not change it."""
    try:
        known = file.stat()
    except OSError as error:
        raise _damaged(file, str(error)) from None
    return _contents(file, (known.st_ino, known.st_size, known.st_mtime_ns))


# All clients of a process read the header of the same file.
@lru_cache(maxsize=4)
def _contents(file: Path, version: tuple[int, ...]) -> Contents:
    require_readable(file)
    with file.open("rb") as stored:
        size = int.from_bytes(stored.read(8), "little")
        header = json.loads(stored.read(size))
    try:
        metadata = {name: json.loads(text) for name, text in header.pop("__metadata__", {}).items()}
        metadata["numbers"]
    except (ValueError, KeyError) as error:
        raise _damaged(file, f"it lacks {error}") from None
    arrays: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, entry in header.items():
        first, _, rest = name.partition("/")
        arrays[first][rest] = entry
    return Contents(metadata, arrays, 8 + size)


def _tensors(file: Path, entries: Mapping[str, Any]) -> dict[str, Tensor]:
    start, tensors = contents_of(file).start, {}
    with file.open("rb") as stored:
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            stored.seek(start + begin)
            array = np.frombuffer(bytearray(stored.read(end - begin)), NUMPY_NAMES[entry["dtype"]])
            tensors[name] = torch.from_numpy(array.reshape(entry["shape"]))
    return tensors


def _damaged(file: Path, reason: str) -> DamagedMemoryError:
    remedy = "restore it from a backup, or repeat the run"
    return DamagedMemoryError(f"{file} is damaged ({reason}); {remedy}.")
