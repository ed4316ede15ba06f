"""Writes that a crash or a power cut leaves whole, and files that grow by an array each round.

A file is written under a temporary name, then moved into place. A durable write also waits for the
disk: first for the content, then for the folder, which holds the name.

A file of arrays may come from somebody else: an array of objects runs code when it is read, and a
header could claim more memory than there is. So each header is checked first.
"""

import errno
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

if sys.platform != "win32":
    import fcntl

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without locks, such as some network file systems."""


def plain_name(name: str) -> str:
    """Return a name that is a valid file name on every system; built-in names do not change."""
    return re.sub(r"[^\w.+=,@ ()-]+", "-", name).strip("-")


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file for writing; if it is new, only its owner can read it."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def lock_file(file: IO[Any], wait: bool = True) -> bool | None:
    """Lock an open file until it is closed; None where the file system has no locks."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and wait until the names of new ones are on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def now() -> str:
    """Return the time as all files have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path; move its file to `path`, or remove it if writing fails.

    If `durable`, wait until file and name are on the disk; otherwise a power cut may lose both, or
    leave an empty file. A durable file belongs to a run, and only its owner can read it. Raises
    `OSError` if the file cannot be moved.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if durable:
            temporary.unlink(missing_ok=True)
            open_private(temporary, "wb").close()
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file so that a crash leaves the old one or the new one."""
    with replacing(path, durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object durably."""
    write_text(file, json.dumps(content, indent=2, allow_nan=False) + "\n", durable=True)


def as_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON lines; NaN and infinite losses become null."""

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    finite_rows = ({name: finite(value) for name, value in row.items()} for row in rows)
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in finite_rows)


def write_arrays(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
) -> None:
    """Write a safetensors file so that a crash leaves the old one or the new one."""
    # safetensors writes the bytes of an array in the order in which they are in memory.
    in_order = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with replacing(path, durable) as temporary:
        try:
            save_file(in_order, temporary, dict(metadata or {}))
        except SafetensorError as error:  # such as on a full disk
            raise OSError(str(error)) from error


NUMBERS = "biuf"
"""Kinds of NumPy types that matrices may have: truth values, whole and real numbers."""


class ArraysError(Exception):
    """A file of something else than arrays of numbers; the message is a clause."""


def append_array(path: Path, array: NDArray[Any]) -> None:
    """Append an array to a file, which is made if missing."""
    path.parent.mkdir(exist_ok=True)
    with open_private(path, "ab") as file:
        np.save(file, array, allow_pickle=False)


def read_arrays(path: Path) -> list[NDArray[Any]]:
    """Return the arrays of a file, up to the first that is incomplete or no array."""
    arrays: list[NDArray[Any]] = []
    try:
        with path.open("rb") as file:
            while _next_is_complete(file):
                arrays.append(np.load(file, allow_pickle=False))
    except OSError as error:
        raise ArraysError(error.strerror or str(error)) from None
    except (ValueError, EOFError):
        pass  # what a crash left of the last array
    return arrays


def _next_is_complete(file: IO[bytes]) -> bool:
    """Return whether the file is as long as the header of its next array says."""
    start = file.tell()
    if npy.read_magic(file) != (1, 0):
        return False
    shape, _, kind = npy.read_array_header_1_0(file)
    if kind.kind not in NUMBERS:
        raise ArraysError(f"it holds an array of {kind}, which is no number")
    size, left = math.prod(shape) * kind.itemsize, os.fstat(file.fileno()).st_size - file.tell()
    file.seek(start)
    return min(shape, default=0) >= 0 and size <= left
