"""Folders of images: which files they contain, and the class of each."""

import hashlib
import re
from collections.abc import Collection, Sequence
from logging import WARNING
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.storage import PARTS, is_tools, parts_of, subfolders
from strategies.core.flower import log

IMAGE_FORMATS = {
    "BMP": (".bmp",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""Pillow's names of the formats that are read, with their suffixes. Pillow knows forty more, whose
decoders would only be a way in for a hostile file."""


def by_number(path: Path) -> tuple[int, str]:
    """Order ``partition_2`` before ``partition_10``."""
    digits = re.search(r"\d+$", path.name)
    return (int(digits[0]) if digits else -1, path.name)


def tables_at(path: Path) -> list[Path]:
    """Return the tables at a path: a Parquet file, an Arrow folder, or a folder of those.

    Empty where there is none, as in a folder of images.
    """
    if path.is_file():
        return [path]
    folders = [path, *sorted(path.glob("*/"), key=by_number)]
    return [folder for folder in folders if (folder / "state.json").is_file()]


def read_image_folder(path: Path, data_format: DataFormat) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the image files of a folder with one folder a class, and their classes.

    The parts ``train`` and ``test``, each with one folder per class, are pooled. Their classes are
    numbered together, so that a class that one part lacks does not shift the others.
    """
    if not data_format.labeled:
        files = image_files(path)
        return files, np.zeros(len(files), dtype=np.int64)
    parts = parts_of(path)
    _warn_of_unread(path, parts)
    folders = [folder for part in parts for folder in subfolders(part)]
    numbers = _class_numbers(path, {folder.name for folder in folders}, data_format.classes)
    files, labels = [], []
    for folder in folders:
        images = image_files(folder)
        files += images
        labels += [numbers[folder.name]] * len(images)
    return files, np.array(labels, dtype=np.int64)


def class_names(data_path: str, classes: int, label_column: str = "") -> list[str]:
    """Return the names of a node's classes in the order of their numbers.

    The names of the class folders, or those that a table records for its labels. Empty where
    classes are numbered, or nothing names all of them.
    """
    path = Path(data_path).expanduser()
    if not data_path or not path.exists():
        return []
    if tables := tables_at(path):
        from fedkd_flwr.data.tables import names_of_labels  # deferred: loads pyarrow

        names = names_of_labels(tables[0], label_column)
        return names if len(names) == classes and names != list(map(str, range(classes))) else []
    names = sorted({folder.name for part in parts_of(path) for folder in subfolders(part)})
    return names if len(names) == classes and not all(map(str.isdecimal, names)) else []


def hash_of_names(names: Sequence[str]) -> str:
    """Return a hash by which silos compare the names of their classes; empty without names."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest() if names else ""


def folders_and_paths(path: Path, files: Sequence[Path]) -> tuple[list[str], list[PurePath]]:
    """Return in which part each file of a labeled folder lies, and its path below the class folder.

    Folders are ``train`` or ``test``, without entries where there are not both. Paths are such as
    ``P07_scan3.png``, or ``P07/scan3.png`` where a class has folders of its own.
    """
    parts = parts_of(path)
    roots = [next(part for part in parts if file.is_relative_to(part)) for file in files]
    within = [
        PurePath(*file.relative_to(root).parts[1:]) for file, root in zip(files, roots, strict=True)
    ]
    return [root.name for root in roots] if len(parts) == len(PARTS) else [], within


def _warn_of_unread(path: Path, parts: Sequence[Path]) -> None:
    """Name the folders beside ``train`` and ``test``: all of them may be classes."""
    unread = [folder.name for folder in subfolders(path) if folder not in parts]
    if parts != [path] and unread:
        log(WARNING, "%s: only %s is read, as a part with a folder for each class; %s is not",
            path, " and ".join(part.name for part in parts), ", ".join(unread))  # fmt: skip


def _class_numbers(path: Path, names: Collection[str], classes: int) -> dict[str, int]:
    """Return the number of each class by the name of its folder."""
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


def image_files(folder: Path) -> list[Path]:
    """Return the files with the suffix of an image, except hidden ones.

    Links to folders are not followed, since a public folder could lead to the private images. A
    warning names the first of them.
    """
    suffixes = {suffix for known in IMAGE_FORMATS.values() for suffix in known}
    shown = sorted(path for path in folder.rglob("*") if not _is_hidden(path.relative_to(folder)))
    if linked := [path for path in shown if path.is_symlink() and path.is_dir()]:
        log(WARNING, "%s: links to folders are not followed, such as %s", folder, linked[0])
    return [path for path in shown if path.suffix.lower() in suffixes and not path.is_dir()]


def _is_hidden(file: Path) -> bool:
    *folders, name = file.parts
    return name.startswith(".") or any(map(is_tools, folders))
