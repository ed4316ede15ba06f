"""Files to which a run appends an array each round, with `numpy.save`.

A file may come from somebody else. The header of an array could claim more memory than there is,
and an array of objects runs code when it is read. So each header is checked first.
"""

import math
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedkd_flwr.files import open_private

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
