"""Folders as PFLlib and HtFLlib write them: a file of training and one of test samples a client.

``train/N.npz`` and ``test/N.npz`` each hold an array ``data`` of type object with a dict of ``x``
and ``y``. Such arrays are pickles, which can run code when they are read. Here nothing of a file is
called: classes of NumPy are replaced by stand-ins that accept plain numbers, all others are
refused.
"""

import io
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedkd_flwr.data.client_folders import Owners
from fedkd_flwr.data.custom_data import OwnArrays, joined_data_set
from fedkd_flwr.data.registry import PFLLIB, DataError
from fedkd_flwr.data.storage import PARTS

LARGEST, RATIO = 2**26, 100
"""A file of more bytes unpacked has at most this many times its size on the disk."""

NUMBERS = re.compile(r"[<>|=]?[biuf]\d{1,2}")
"""Types of arrays that are read: truth values, whole and floating-point numbers."""


def client_files(name: str) -> tuple[OwnArrays, Owners]:
    """Return the samples in the files of a folder, training files first, and whose they are."""
    root = Path(name.removeprefix(PFLLIB))
    train, test = (_files_by_number(root / part) for part in PARTS)
    if not train or [path.name for path in train] != [path.name for path in test]:
        raise DataError(
            f"{str(root)!r} has {len(train)} files train/N.npz and {len(test)} files test/N.npz; "
            "it needs one of both for each client, with the same numbers"
        )
    pairs = [_samples_in(path) for path in (*train, *test)]
    sizes = [len(labels) for _, labels in pairs]
    clients = np.repeat(np.tile(np.arange(len(train)), 2), sizes)
    is_test = np.repeat(np.repeat([False, True], len(train)), sizes)
    names = tuple(int(path.stem) for path in train)
    return joined_data_set(name, pairs), Owners(clients, is_test, names)


def _files_by_number(folder: Path) -> list[Path]:
    files = [path for path in folder.glob("*.npz") if path.stem.isdecimal()]
    return sorted(files, key=lambda path: int(path.stem))


# ---- One file ------------------------------------------------------------------------


def _samples_in(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the samples (n, ...) and the labels (n,) in a file."""
    try:
        with zipfile.ZipFile(path) as file:
            stream = io.BytesIO(_unpacked(file))
        if npy.read_magic(stream) == (1, 0):
            npy.read_array_header_1_0(stream)
        else:
            npy.read_array_header_2_0(stream)
        size = len(stream.getvalue())
        held = _Plain(most=size).of(_NumbersUnpickler(stream).load())
        samples, labels = np.asarray(held["x"]), np.asarray(held["y"])
        if labels.ndim != 1 or len(samples) != len(labels):
            raise ValueError(f"x has shape {samples.shape} and y {labels.shape}")
        return samples, labels
    # What a damaged pickle raises is not limited to a kind of error.
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(
            f"{str(path)!r} is not a file of PFLlib, an array data with a dict of x and y: "
            f"{type(error).__name__}: {text}"
        ) from error


def _unpacked(file: zipfile.ZipFile) -> bytes:
    """Return the array in a file. A few bytes can unpack to more than fits into memory."""
    member = file.getinfo("data.npy")
    if member.file_size > max(LARGEST, RATIO * member.compress_size):
        raise ValueError(
            f"it unpacks to {member.file_size / 2**20:,.0f} MiB, too many for its size"
        )
    return file.read(member)


class _Type:
    """Stands in for ``numpy.dtype``."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.code = f"{state[1]}{self.code}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of numbers."""
        if not NUMBERS.fullmatch(self.code):
            raise pickle.UnpicklingError(f"an array of type {self.code} holds no numbers")
        return np.dtype(self.code)


class _Array:
    """Stands in for ``numpy.ndarray``."""

    content: object = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, in_columns, raw = state
        if isinstance(raw, list):
            (self.content,) = raw
            return
        numbers = np.frombuffer(raw, kind.dtype)
        self.content = numbers.reshape(shape, order="F" if in_columns else "C")


def _new_array(*_: object) -> _Array:
    """Stand in for NumPy's function of the same purpose, ``_reconstruct``."""
    return _Array()


def _number(kind: _Type, raw: bytes) -> Any:
    """Stand in for ``numpy.core.multiarray.scalar``."""
    return np.frombuffer(raw, kind.dtype)[0]


STAND_INS = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy._core.multiarray", "scalar"): _number,
}
"""What replaces the only names of code that a file may contain."""


class _NumbersUnpickler(pickle.Unpickler):
    """Reads dicts, lists, numbers and arrays of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of a name."""
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"{module}.{name} is refused, as it could run code")
        return STAND_INS[module, name]


@dataclass
class _Plain:
    """Converts what was read to values without stand-ins, at most some number of entries."""

    most: int

    def of(self, value: object) -> Any:
        """Return a value without stand-ins."""
        self.most -= 1
        if self.most < 0:
            raise ValueError("its lists hold one another")
        if isinstance(value, _Array):
            return self.of(value.content)
        if isinstance(value, dict):
            return {key: self.of(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(entry) for entry in value]
        return value
