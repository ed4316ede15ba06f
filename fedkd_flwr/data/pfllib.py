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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedkd_flwr.data.client_folders import Owners
from fedkd_flwr.data.custom_data import OwnArrays, joined_data_set
from fedkd_flwr.data.registry import PFLLIB, DataError
from fedkd_flwr.data.storage import PARTS

NUMBERS = re.compile(r"[<>|=]?[biuf]\d{1,2}")
"""Types of arrays that are read: truth values, whole and floating-point numbers."""


def client_files(name: str) -> tuple[OwnArrays, Owners]:
    """Return the samples in the files of a folder, training files first, and whose they are.

    Clients are named by the numbers of their files. Raises `DataError` if a file is missing,
    damaged, or holds anything but arrays of numbers.
    """
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
            stream = io.BytesIO(file.read("data.npy"))
        if npy.read_magic(stream) == (1, 0):
            npy.read_array_header_1_0(stream)
        else:
            npy.read_array_header_2_0(stream)
        held = _as_plain(_NumbersUnpickler(stream).load())
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
    """Stands in for ``numpy.ndarray``.

    Its content is an array of numbers, or what an array of type object with one entry holds.
    """

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
        """Return the stand-in of a name.

        Raises `pickle.UnpicklingError` if it has none.
        """
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"{module}.{name} is refused, as it could run code")
        return STAND_INS[module, name]


def _as_plain(value: object) -> Any:
    """Return what was read without stand-ins."""
    if isinstance(value, _Array):
        return _as_plain(value.content)
    if isinstance(value, dict):
        return {key: _as_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(entry) for entry in value]
    return value
