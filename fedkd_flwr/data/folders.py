"""Folders of images or clients: which files they contain, and the class and client of each."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path, PurePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.registry import CLIENTS, FOLDER, DataError, DataFormat
from fedkd_flwr.data.storage import TEST, is_tools, part_kind, parts_of, subfolders
from strategies.core.flower import log

IMAGE_FORMATS = {
    "BMP": (".bmp",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""Pillow's names of the formats that are read, with their suffixes. Pillow knows forty more, whose
decoders would only be a way in for a hostile file."""

SUFFIXES = sorted(suffix for known in IMAGE_FORMATS.values() for suffix in known)


def by_number(path: Path) -> tuple[int, str]:
    """Order ``partition_2`` before ``partition_10``."""
    digits = re.search(r"\d+$", path.stem)
    return (int(digits[0]) if digits else -1, path.name)


def tables_at(path: Path) -> list[Path]:
    """Return the tables at a path: a Parquet file, an Arrow folder, or a folder of those."""
    if path.is_file():
        return [path]
    folders = [path, *sorted(path.glob("*/"), key=by_number)]
    return [folder for folder in folders if (folder / "state.json").is_file()]


@dataclass(frozen=True)
class ImageFile:
    """An image of a labeled folder, its client and part, and its path in the class folder."""

    file: Path
    label: int = 0
    client: int = 0
    part: str = ""
    path: PurePath = field(default_factory=PurePath)


@dataclass(frozen=True)
class FoundImages:
    """The image files of a folder, the names of its classes by number, and what is not read."""

    images: list[ImageFile]
    names: list[str]
    left_out: list[str]


def find_images(path: Path, roots: Sequence[Path], data_format: DataFormat) -> FoundImages:
    """Return the images of folders with one folder a class, and their classes.

    `roots` are `path` itself, or the folders of clients in it. Parts such as ``train`` are pooled.
    Classes are numbered together, so that one that a part or client lacks does not shift the
    others.
    """
    if not data_format.labeled:
        return _find_unlabeled(roots)
    folders, beside = list[tuple[Path, int, str]](), 0
    for client, root in enumerate(roots):
        parts = parts_of(root)
        _warn_of_unread(root, parts)
        for part in parts:
            kind = "" if part == root else part_kind(part.name)
            folders += [(entry, client, kind) for entry in subfolders(part)]
        beside += sum(_is_image(entry) for place in {root, *parts} for entry in place.iterdir())
    names = _names_of_classes([folder for folder, _, _ in folders])
    _warn_of_merged(names)
    _require_one_reading(path, roots, names, data_format.classes)
    numbers = _class_numbers(path, set(names.values()), data_format.classes)
    found, left_out = [], Counter[str]()
    for folder, client, kind in folders:
        files, others = _files_in(folder)
        _require_images(folder, files, others)
        left_out += others
        label = numbers[names[folder]]
        found += [ImageFile(file, label, client, kind, file.relative_to(folder)) for file in files]
    told = _counted(left_out)
    if beside:
        told.append(f"{beside} beside the class folders")
    by_name = all(name.isdecimal() for name in numbers)
    return FoundImages(found, [] if by_name else sorted(numbers), told)


def _find_unlabeled(roots: Sequence[Path]) -> FoundImages:
    found, left_out = [], Counter[str]()
    for root in roots:
        files, others = _files_in(root)
        found += [ImageFile(file) for file in files]
        left_out += others
    return FoundImages(found, [], _counted(left_out))


def class_names(data_path: str, classes: int, label_column: str = "") -> list[str]:
    """Return the names of a node's classes by their numbers; empty unless all of them have one."""
    path = Path(data_path).expanduser()
    if not data_path or not path.exists():
        return []
    if tables := tables_at(path):
        from fedkd_flwr.data.tables import names_of_labels  # deferred: loads pyarrow

        names = names_of_labels(tables[0], label_column)
        return names if len(names) == classes and names != list(map(str, range(classes))) else []
    folders = [folder for part in parts_of(path) for folder in subfolders(part)]
    names = sorted(set(_names_of_classes(folders).values()))
    return names if len(names) == classes and not all(map(str.isdecimal, names)) else []


def hash_of_names(names: Sequence[str]) -> str:
    """Return a hash by which silos compare the names of their classes; empty without names."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest() if names else ""


def _warn_of_unread(path: Path, parts: Sequence[Path]) -> None:
    """Name the folders beside ``train`` and ``test``: all of them may be classes."""
    read = {part.relative_to(path).parts[:1] for part in parts}
    unread = [folder.name for folder in subfolders(path) if (folder.name,) not in read]
    if parts != [path] and unread:
        log(WARNING, "%s: only %s is read, as a part with a folder for each class; %s is not",
            path, " and ".join(part.name for part in parts), ", ".join(unread))  # fmt: skip


def _warn_of_merged(names: Mapping[Path, str]) -> None:
    merged = {f"{name} and {folder.name}" for folder, name in names.items() if folder.name != name}
    if merged:
        log(WARNING, "folders whose names are equal but for case or Unicode form are one class: %s",
            ", ".join(sorted(merged)))  # fmt: skip


def _names_of_classes(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the class of each folder, the same for names that differ in case alone."""
    first: dict[str, str] = {}
    seen: dict[tuple[Path, str], Path] = {}
    names = {}
    for folder in folders:
        name = unicodedata.normalize("NFC", folder.name)
        names[folder] = first.setdefault(name.casefold(), name)
        other = seen.setdefault((folder.parent, name.casefold()), folder)
        if other != folder:
            raise DataError(
                f"{str(folder.parent)!r} has the folders {other.name} and {folder.name}, whose "
                "names are equal but for case or Unicode form: rename one, or join them"
            )
    return names


def _require_one_reading(
    path: Path, roots: Sequence[Path], names: Mapping[Path, str], classes: int
) -> None:
    """Ask where folders may be parts without classes, or hold the classes of a client each."""
    for root in roots:
        entries = [entry.name for entry in subfolders(root)]
        if entries and parts_of(root) == [root] and all(map(part_kind, entries)):
            raise DataError(
                f"{str(root)!r} has the folders {_listed(entries)}, which are parts of a data set "
                "and hold images without a class: sort the images of each part into a folder for "
                f"each class, such as {entries[0]}/cat"
            )
    within = {name: set[str]() for name in names.values()}
    for folder, name in names.items():
        within[name] |= {entry.name.casefold() for entry in subfolders(folder)}
    counts = Counter(entry for entries in within.values() for entry in entries)
    shared = sorted(entry for entry, count in counts.items() if count > 1)
    all_share = all(entries & set(shared) for entries in within.values())
    if (
        not all_share
        or all(map(part_kind, shared))
        or any(_is_image(entry) for folder in names for entry in folder.iterdir())
    ):
        return
    outer = sorted(within)
    seen = f"{str(path)!r} has the folders {_listed(outer)}, which share the folders"
    if len(outer) == classes:
        log(WARNING, "%s %s; the former are read as classes", seen, _listed(shared))
        return
    first = next(iter(names))
    raise DataError(
        f"{seen} {_listed(shared)}: if each of the former is a client, set dataset to "
        f"{CLIENTS}{first.parent}; for one of them, to {FOLDER}{first}; if they are the classes, "
        f"set num-classes to {len(outer)}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _class_numbers(path: Path, names: Collection[str], classes: int) -> dict[str, int]:
    if not names:
        raise DataError(f"{str(path)!r} has no folders; it needs one for each class")
    if all(name.isdecimal() for name in names):
        return {name: int(name) for name in names}
    if len(names) == (classes or len(names)):
        return {name: number for number, name in enumerate(sorted(names))}
    raise DataError(
        f"{str(path)!r} holds {len(names)} folders; it needs one for each of the "
        f"{classes} classes, which may be empty, or folders named by class number"
    )


def _require_images(folder: Path, files: Sequence[Path], others: Counter[str]) -> None:
    """Refuse a class folder with files of other kinds alone: its class would vanish."""
    if others and not files:
        raise DataError(
            f"the class folder {str(folder)!r} has no image that is read, but "
            f"{' and '.join(_counted(others))}; read are {', '.join(SUFFIXES)}: convert the files, "
            "or remove the folder"
        )


def _counted(suffixes: Counter[str]) -> list[str]:
    return [f"{count} {suffix}" for suffix, count in sorted(suffixes.items())]


def image_files(folder: Path) -> list[Path]:
    """Return the images below a folder. Links are not followed: they may lead to private ones."""
    return _files_in(folder)[0]


def _files_in(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return the image files below a folder, and the numbers of other files by suffix."""
    shown = sorted(path for path in folder.rglob("*") if not _is_hidden(path.relative_to(folder)))
    if linked := [path for path in shown if path.is_symlink() and path.is_dir()]:
        log(WARNING, "%s: links to folders are not followed, such as %s", folder, linked[0])
    others = [path for path in shown if not (path.is_dir() or _is_image(path))]
    suffixes = Counter(path.suffix.lower() or "without a suffix" for path in others)
    return [path for path in shown if _is_image(path)], suffixes


def _is_image(path: Path) -> bool:
    is_named = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    return is_named and not path.is_dir()


def _is_hidden(file: Path) -> bool:
    *folders, name = file.parts
    return name.startswith(".") or any(map(is_tools, folders))


ARRAYS = ".npz"  # suffix of files of NumPy
OF_CLIENTS = (".parquet", ".csv", ARRAYS)  # suffixes of what a client can have besides images

MOST_NAMED = 10  # most classes or clients that are counted one by one in the line on what was read

SAMPLES, LABELS = ("x", "samples", "images", "data"), ("y", "labels", "label", "targets")
"""Names of the two arrays in a NumPy file, in any case."""


@dataclass(frozen=True, eq=False)
class Owners:
    """Which client (n,) has each sample, from 0, and whether it is for testing (n,).

    Clients are named by their folder, file, or value of a column.
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
    places = folders or _files_of(path)
    if not places:
        raise DataError(
            f"{CLIENTS}{path} needs a folder for each client, or a file "
            f"({', '.join(OF_CLIENTS)}) for each"
        )
    return sorted(places, key=by_number)


def files_of_clients(places: Sequence[Path]) -> list[list[Path]]:
    """Return the tables or NumPy files of each client; nothing where they have images."""
    found = [
        [place] if place.is_file() else tables_at(place) or _files_of(place) for place in places
    ]
    kinds = {
        place.name: {file.suffix.lower() if file.is_file() else "Arrow folders" for file in files}
        or {"images"}
        for place, files in zip(places, found, strict=True)
    }
    for place, files in zip(places, found, strict=True):
        # A table of metadata beside the images would be read in their place.
        if files and place.is_dir() and any(map(image_files, subfolders(place))):
            kinds[place.name].add("images")
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


def _files_of(folder: Path) -> list[Path]:
    files = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in OF_CLIENTS)
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
