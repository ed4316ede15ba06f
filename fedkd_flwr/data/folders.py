"""Folders of images: which files they hold, and of which class each is."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.catalogue import DataError, Wanted
from fedkd_flwr.data.origin import PARTS

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
"""Files of an image folder that are images; the others are passed over."""


def by_number(path: Path) -> tuple[int, str]:
    """Order ``partition_2`` before ``partition_10``."""
    digits = re.search(r"\d+$", path.name)
    return (int(digits[0]) if digits else -1, path.name)


def read_image_folder(path: Path, wanted: Wanted) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the image files of a folder with one folder a class, and their classes.

    A part for training and one for tests, of a folder a class each, are pooled.
    """
    if not wanted.labelled:
        files = _image_files(path)
        return files, np.zeros(len(files), dtype=np.int64)
    parts = [path / part for part in PARTS if (path / part).is_dir()]
    if parts:
        read = [read_image_folder(part, wanted) for part in parts]
        return [file for files, _ in read for file in files], np.concatenate([k for _, k in read])
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    if not folders:
        raise DataError(f"{str(path)!r} holds no folder; it needs one for each class")
    if all(folder.name.isdecimal() for folder in folders):
        numbers = [int(folder.name) for folder in folders]
    elif len(folders) == (wanted.classes or len(folders)):
        numbers = list(range(len(folders)))
    else:
        raise DataError(
            f"{str(path)!r} holds {len(folders)} folders; it needs one for each of the "
            f"{wanted.classes} classes, if need be empty, or folders named by the number of the "
            "class"
        )
    files, labels = [], []
    for folder, number in zip(folders, numbers, strict=True):
        images = _image_files(folder)
        files += images
        labels += [number] * len(images)
    return files, np.array(labels, dtype=np.int64)


def _image_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
