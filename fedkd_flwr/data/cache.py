"""Decoded data sets on disk: the next process maps them into its memory and decodes nothing.

A data set is one safetensors file. Its name contains a digest of everything that determines its
content, so it is never out of date. A file is written atomically and never changed, so that
processes may read, write and remove files at the same time. Damaged files are ignored.
"""

import contextlib
import os
import tempfile
import zlib
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path

from platformdirs import user_cache_path
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from strategies.core.flower import log

FOLDER_VARIABLE = "FEDKD_CACHE"  # environment variable with the folder of the cache, or `OFF`
OFF = "off"  # value of `FOLDER_VARIABLE` that turns the cache off

MOST_BYTES = 2 * 2**30
"""Maximum size of all files together: three times that of the built-in data sets."""

ENDING = ".safetensors"


def cache_folder() -> Path | None:
    """Return the folder of the decoded data sets, made or not; None if nothing is kept."""
    asked = os.environ.get(FOLDER_VARIABLE, "")
    if asked == OFF:
        return None
    root = Path(asked).expanduser() if asked else user_cache_path("fedkd", appauthor=False)
    # A folder of its own: files in it are removed to make room.
    return root / "decoded"


def read_array(path: Path | None, name: str) -> Tensor | None:
    """Return an array of a cached file, mapped into memory; None if missing or damaged."""
    if path is None:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            array: Tensor = file.get_tensor(name)
            is_whole = (file.metadata() or {}).get(name) == _checksum(array)
    except OSError:  # not there, or not ours to read
        return None
    # PyTorch's error is for a file that has gone since it was opened.
    except (SafetensorError, RuntimeError):
        is_whole = False
    if is_whole:
        with contextlib.suppress(OSError):  # a cache may be read-only
            os.utime(path)  # the files used longest ago are removed first
        return array
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return None


def keep_arrays(path: Path, arrays: Mapping[str, Tensor]) -> None:
    """Write arrays into the cache; log a warning if that fails."""
    checksums = {name: _checksum(array) for name, array in arrays.items()}
    try:
        # Only the owner may read the cache, since the data may be private.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(ENDING, f".{path.stem}-", path.parent)
        os.close(descriptor)
        try:
            save_file(dict(arrays), temporary, checksums)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        make_room(path.parent)
    except (OSError, SafetensorError) as error:
        log(WARNING, "decoded images cannot be cached (%s)", error)


def make_room(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Remove the files used longest ago until the others take no more than a number of bytes."""
    found = []
    for path in folder.glob(f"*{ENDING}"):
        with contextlib.suppress(FileNotFoundError):  # another process makes room as well
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    taken = 0
    for _, size, path in sorted(found, reverse=True):
        taken += size
        if taken > most_bytes:
            path.unlink(missing_ok=True)


def _checksum(array: Tensor) -> str:
    """Return a checksum of type, shape and content: a quarter of a second for a gigabyte."""
    described = zlib.crc32(f"{array.dtype} {tuple(array.shape)}".encode())
    return f"{zlib.crc32(array.numpy().data, described):08x}"
