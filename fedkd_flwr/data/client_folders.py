"""``clients:PATH``: a folder or a file of each client, and which samples are whose."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.folders import by_number, tables_at
from fedkd_flwr.data.registry import CLIENTS, FOLDER, DataError
from fedkd_flwr.data.storage import TEST, part_kind, subfolders

TABLES, ARRAYS = (".parquet", ".csv"), (".npz",)
"""Suffixes of files that a client can have besides images."""

MOST_NAMED = 10
"""Most classes or clients that are counted one by one in the line on what was read."""

SAMPLES, LABELS = ("x", "samples", "images", "data"), ("y", "labels", "label", "targets")
"""Names of the two arrays in a NumPy file, in any case."""


@dataclass(frozen=True, eq=False)
class Owners:
    """Which client has each sample, and which samples are test samples.

    Clients (n,) are int64, from 0, and named by their folder, file, or value of a column. `is_test`
    (n,) says whether the sample is for testing, whatever ``client-split`` says. Raises `DataError`
    if a named client has no sample.
    """

    clients: NDArray[np.int64]
    is_test: NDArray[np.bool_]
    names: tuple[str | int, ...]

    def __post_init__(self) -> None:
        empty = sorted(set(range(len(self.names))) - set(self.clients.tolist()))
        if empty:
            raise DataError(
                f"no sample is found of the client {self.names[empty[0]]!r}: sort its images into "
                "a folder for each class, or remove its folder"
            )

    @classmethod
    def named(cls, values: NDArray[np.generic]) -> Self:
        """Return the owners of samples by a name or whole number of each, (n,)."""
        names, clients = np.unique(values, return_inverse=True)
        return cls(clients, np.zeros(len(values), dtype=bool), tuple(names.tolist()))

    @property
    def of_samples(self) -> NDArray[np.generic]:
        """The name of each sample's client, shape (n,)."""
        return np.array(self.names)[self.clients]

    def described(self) -> str:
        """Return how many samples each client has, or how many clients there are."""
        if len(self.names) > MOST_NAMED:
            return f"{len(self.names)} clients"
        counts = np.bincount(self.clients, minlength=len(self.names)).tolist()
        told = [f"{name} {count}" for name, count in zip(self.names, counts, strict=True)]
        return f"{len(told)} clients: {', '.join(told)}"


def places_of_clients(path: Path) -> list[Path]:
    """Return the folder or file of each client, ``client_2`` before ``client_10``."""
    if not path.is_dir():
        raise DataError(f"there is no folder {str(path)!r}")
    folders = subfolders(path)
    if folders and all(part_kind(folder.name) for folder in folders):
        raise DataError(
            f"{str(path)!r} has the folders {', '.join(folder.name for folder in folders)}, which "
            f"are parts of a data set: it needs a folder for each client, such as north/train; or "
            f"set dataset to {FOLDER}{path}"
        )
    places = folders or _files_of(path, (*TABLES, *ARRAYS))
    if not places:
        raise DataError(
            f"{CLIENTS}{path} needs a folder for each client, or a file "
            f"({', '.join((*TABLES, *ARRAYS))}) for each"
        )
    return sorted(places, key=by_number)


def files_of_clients(places: Sequence[Path]) -> list[list[Path]]:
    """Return the tables or NumPy files of each client; nothing where they have images."""
    found = [
        [place] if place.is_file() else tables_at(place) or _files_of(place, (*TABLES, *ARRAYS))
        for place in places
    ]
    kinds = {
        place.name: {file.suffix.lower() if file.is_file() else "Arrow folders" for file in files}
        or {"images"}
        for place, files in zip(places, found, strict=True)
    }
    if len(set[str]().union(*kinds.values())) > 1:
        told = "; ".join(f"{name}: {', '.join(sorted(kind))}" for name, kind in kinds.items())
        raise DataError(f"clients have files of several kinds ({told}); all need the same")
    return found if any(found) else []


def owners_of_files(
    places: Sequence[Path], files: Sequence[Sequence[Path]], sizes: Sequence[int]
) -> Owners:
    """Return whose samples are; those of files such as ``test.npz`` are for testing."""
    of_files = [(client, file) for client, own in enumerate(files) for file in own]
    clients = np.repeat([client for client, _ in of_files], sizes)
    is_test = np.repeat([part_kind(file.stem) == TEST for _, file in of_files], sizes)
    return Owners(clients, is_test, tuple(place.name for place in places))


def _files_of(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    files = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in suffixes)
    return [file for file in files if file.is_file() and not file.name.startswith(".")]


def read_arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return samples and labels of a NumPy file with two arrays, such as ``x`` and ``y``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name.lower(): file[name] for name in file.files}
    # A damaged file raises errors of many kinds.
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(f"{str(path)!r} cannot be read as arrays of NumPy: {text}") from error
    samples = [arrays[name] for name in SAMPLES if name in arrays]
    labels = [arrays[name] for name in LABELS if name in arrays]
    if len(samples) != 1 or len(labels) != 1:
        raise DataError(
            f"{str(path)!r} has the arrays {', '.join(arrays)}: it needs samples as "
            f"{' or '.join(SAMPLES)}, and labels as {' or '.join(LABELS)}"
        )
    return samples[0], labels[0]
