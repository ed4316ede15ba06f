"""Read arrays of a run directory, after their headers: it may come from somebody else.

A compressed file of a megabyte can hold a thousand, and an array of objects can run code when it
is read. So the shape and the type in each header are checked against the recorded size first.
"""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

MOST_BYTES = 2**32
"""Bytes of all arrays of a file; a run of 1,000 clients has 4 MB a round and matrix."""

NUMBERS = "biuf"
"""Kinds of NumPy types that matrices may have: truth values, whole and real numbers."""


class ArraysError(ValueError):
    """A file that holds no arrays of numbers, or too large ones; the message is a clause."""


NO_ARRAYS = (
    OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of NumPy and zipfile about a file without arrays."""


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``npz`` file by name.

    Raises
    ------
    ArraysError
        If it holds anything else, or more than `MOST_BYTES`.
    """
    check_archive(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except NO_ARRAYS:
        raise ArraysError("it holds no arrays") from None


def check_archive(path: Path, whole: bool = False) -> None:
    """Check the headers of an ``npz`` file without decompressing its arrays.

    Parameters
    ----------
    path : Path
        The file.
    whole : bool
        Whether to check the content as well, by its checksums and in parts of small size.

    Raises
    ------
    ArraysError
        If it holds anything but arrays of numbers, more than `MOST_BYTES`, or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > MOST_BYTES:
                raise ArraysError(f"its arrays have more than {MOST_BYTES:,} bytes")
            for member in members:
                with archive.open(member) as file:
                    _check_header(file, member.file_size)
            if whole and archive.testzip() is not None:
                raise ArraysError("it holds no arrays")
    except ArraysError:
        raise
    except NO_ARRAYS:
        raise ArraysError("it holds no arrays") from None


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of an ``npy`` file.

    Raises
    ------
    ArraysError
        If it holds anything but an array of numbers of the file's size.
    """
    try:
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except ArraysError:
        raise
    except NO_ARRAYS:
        raise ArraysError("it holds no arrays") from None
    return array


def _check_header(file: IO[bytes], size: int) -> None:
    """Check that the header of an array fits a file of `size` bytes, header included."""
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, kind = read(file)
    if kind.kind not in NUMBERS:
        raise ArraysError(f"it holds an array of {kind}, which is no number")
    if math.prod(shape) * kind.itemsize != size - file.tell():
        raise ArraysError(f"the header of an array says {shape}, which is not its size")
