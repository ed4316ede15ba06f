"""Data sets as tensors: where they come from, and how they are decoded, once a machine.

The train and test part of a data set are pooled, train first: the papers split the pool over
clients and then into train and test inside each client.
"""

import functools
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedkd_flwr.data.cache import cache_folder, keep_arrays, read_array
from fedkd_flwr.data.catalogue import DATASETS, DataError, Shape, find_source
from fedkd_flwr.data.origin import fingerprint

if TYPE_CHECKING:
    from PIL import Image

BUNDLED_DIGITS = "sklearn/datasets/data/digits.csv.gz"
"""File of scikit-learn with a row a digit: 64 brightnesses from 0 to 16, and the class."""

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
"""Files of an image folder that are images; the others are passed over."""

GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""Brightness of red, green and blue (ITU-R BT.601), as image libraries turn colour to grey."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Decoded images with their classes.

    Attributes
    ----------
    images : Tensor
        Shape (n, channels, height, width), uint8.
    labels : Tensor
        Shape (n,), int64, from 0 to `classes` - 1.
    classes : int
        K, the number of classes.
    """

    images: Tensor
    labels: Tensor
    classes: int


def load_labels(name: str, data_root: str = "") -> NDArray[np.int64]:
    """Return the classes of all samples without decoding an image.

    Parameters
    ----------
    name : str
        Name of the data set, a key of `DATASETS`.
    data_root : str
        Folder that holds Parquet data sets by hub id; empty for the Hugging Face hub.

    Returns
    -------
    ndarray
        Shape (n,), int64, read-only, in the order of `load_images`.

    Raises
    ------
    DataError
        If the data set is unknown, missing, or holds classes it should not.
    """
    return _load_labels(name, data_root)


def load_images(name: str, data_root: str = "") -> ImageSet:
    """Return a whole data set, decoded; the second call in a process costs nothing.

    What is decoded from image files is kept on disk (`fedkd_flwr.data.cache`), from where other
    processes have it.

    Parameters
    ----------
    name, data_root : str
        As for `load_labels`.

    Raises
    ------
    DataError
        If the data set is unknown or missing, or an image cannot be decoded.
    """
    return _load_images(name, data_root)


# The caches sit behind the public functions, so that a keyword argument is no other key.
@functools.cache
def _load_labels(name: str, data_root: str) -> NDArray[np.int64]:
    source = find_source(name)
    labels = _read_labels(name, data_root) if source.hub_id else _bundled_digits()[1]
    _require_classes(labels, source.classes, f"data set {name!r}")
    labels.flags.writeable = False
    return labels


def _read_labels(name: str, data_root: str) -> NDArray[np.int64]:
    kept = _kept(name, data_root, "labels")
    if kept is not None:
        return kept.numpy()
    # Deferred: digits need no Arrow, nor does what was decoded before.
    from fedkd_flwr.data.tables import read_column, whole_numbers

    source = find_source(name)
    return whole_numbers(read_column(source.hub_id, source.label_column, data_root))


@functools.cache
def _load_images(name: str, data_root: str) -> ImageSet:
    source = find_source(name)
    labels = torch.tensor(load_labels(name, data_root))
    if source.hub_id:
        images = _read_images(name, data_root, labels)
    else:
        images = convert_images(_bundled_digits()[0], source.shape)
    return ImageSet(images, labels, source.classes)


def _read_images(name: str, data_root: str, labels: Tensor) -> Tensor:
    """Return the images of a data set; those that had to be decoded are kept, with the labels."""
    kept = _kept(name, data_root, "images")
    if kept is not None:
        return kept
    from fedkd_flwr.data.tables import encoded_images, read_column

    source = find_source(name)
    column = read_column(source.hub_id, source.image_column, data_root)
    images = decode_images(encoded_images(column), source.shape)
    path = _path_in_cache(name, data_root)
    if path is not None:
        keep_arrays(path, {"images": images, "labels": labels})
    return images


def _kept(name: str, data_root: str, array: str) -> Tensor | None:
    path = _path_in_cache(name, data_root)
    return None if path is None else read_array(path, array)


@functools.cache
def _path_in_cache(name: str, data_root: str) -> Path | None:
    """Return the file of a data set in the cache, named by all that its content follows from."""
    folder = cache_folder()
    if folder is None:
        return None
    source = find_source(name)
    # Pillow decodes the images, and PyTorch resizes them.
    libraries = (version("pillow"), torch.__version__)
    follows_from = (fingerprint(source.hub_id, data_root), source, libraries)
    digest = hashlib.sha256(repr(follows_from).encode()).hexdigest()
    return folder / f"{name}-{digest[:32]}.safetensors"


def _bundled_digits() -> tuple[Tensor, NDArray[np.int64]]:
    """Return scikit-learn's digits, (1797, 1, 8, 8) uint8, and their classes.

    The file is read as it lies: importing scikit-learn for it takes seconds.
    """
    path = distribution("scikit-learn").locate_file(BUNDLED_DIGITS)
    rows = np.loadtxt(str(path), delimiter=",", dtype=np.uint8)
    brightness = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).round()
    return brightness.to(torch.uint8), rows[:, -1].astype(np.int64)


def _require_classes(labels: NDArray[np.int64], classes: int, owner: str) -> None:
    if not len(labels):
        raise DataError(f"{owner} holds no sample")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{owner} holds classes {labels.min()} to {labels.max()}, "
            f"allowed are 0 to {classes - 1}"
        )


def decode_images(
    encoded: Sequence[bytes], shape: Shape, names: Sequence[str] | None = None
) -> Tensor:
    """Decode image files (PNG, JPEG or WebP) to one shape.

    Parameters
    ----------
    encoded : sequence of bytes
        The n files.
    shape : tuple of int
        Channels (1 or 3), height and width that every image is brought to.
    names : sequence of str, optional
        What to call each in an error, its position if left out.

    Returns
    -------
    Tensor
        Shape (n, channels, height, width), uint8.

    Raises
    ------
    DataError
        If one of them cannot be decoded.
    """
    from PIL import Image  # deferred: digits are no image files

    images = torch.empty((len(encoded), *shape), dtype=torch.uint8)
    for position, file in enumerate(encoded):
        try:
            with Image.open(io.BytesIO(file)) as opened:
                image = _pixels(opened)
        # Pillow raises many unrelated kinds of error for a damaged file.
        except Exception as error:
            name = names[position] if names else f"image {position}"
            raise DataError(f"{name} is no readable PNG, JPEG or WebP file") from error
        images[position] = image if image.shape == shape else convert_images(image[None], shape)[0]
    return images


def _pixels(image: "Image.Image") -> Tensor:
    """Decode one image to (1 or 3, height, width) uint8, grey where the file is."""
    pixels = np.array(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)


def convert_images(images: Tensor, shape: Shape) -> Tensor:
    """Bring images to another shape: grey or colour, and resized bilinearly.

    Parameters
    ----------
    images : Tensor
        Shape (n, 1 or 3, any height, any width), uint8.
    shape : tuple of int
        Channels (1 or 3), height and width wanted.

    Returns
    -------
    Tensor
        Shape (n, channels, height, width), uint8.
    """
    channels, height, width = shape
    if channels < images.shape[1]:
        weights = torch.tensor(GREY_WEIGHTS).view(1, 3, 1, 1)
        images = (images * weights).sum(dim=1, keepdim=True).round().to(torch.uint8)
    if images.shape[2:] != (height, width):
        images = functional.interpolate(
            images, (height, width), mode="bilinear", align_corners=False, antialias=True
        )
    return images.expand(-1, channels, -1, -1)


def to_float(images: Tensor) -> Tensor:
    """Turn uint8 images into float32 from -1 (black) to 1 (white), on the same device."""
    return (images / 127.5).sub_(1.0)


def load_own_data(path: str | Path, shape: Shape, classes: int) -> ImageSet:
    """Load a node's own images: a folder with one folder per class, or one Parquet file.

    Parameters
    ----------
    path : str or Path
        The folder or the Parquet file. Folders are classes by their number when all names are
        numbers; else by alphabetical order, and then there must be one for every class, if
        need be empty, so that all nodes number the classes alike. A Parquet file has the
        columns of the Hugging Face hub: ``image`` or ``img``, and ``label`` or ``fine_label``.
    shape : tuple of int
        Channels, height and width that the images are converted to.
    classes : int
        K, the number of classes of the federation.

    Raises
    ------
    DataError
        If there is nothing at `path`, a class is none of the K, or an image is unreadable.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        files, labels = _read_image_folder(path, classes)
        encoded, names = [file.read_bytes() for file in files], [repr(str(file)) for file in files]
    elif path.is_file():
        encoded, labels = _read_own_table(path)
        names = [f"the image in row {row} of {str(path)!r}" for row in range(len(encoded))]
    else:
        raise DataError(f"there is no folder or Parquet file at {str(path)!r}")
    _require_classes(labels, classes, repr(str(path)))
    return ImageSet(decode_images(encoded, shape, names), torch.from_numpy(labels), classes)


def _read_own_table(path: Path) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the image files and classes of a Parquet file with one of the hub's columns."""
    from fedkd_flwr.data.tables import encoded_images, read_parquet, whole_numbers

    sources = [source for source in DATASETS.values() if source.hub_id]
    image_columns = sorted({source.image_column for source in sources})
    label_columns = sorted({source.label_column for source in sources}, reverse=True)
    images = read_parquet(path, image_columns)
    return encoded_images(images), whole_numbers(read_parquet(path, label_columns))


def _read_image_folder(path: Path, classes: int) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the image files of a folder with one folder a class, and their classes."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    if not folders:
        raise DataError(f"{str(path)!r} holds no folder; it needs one for each class")
    if all(folder.name.isdecimal() for folder in folders):
        numbers = [int(folder.name) for folder in folders]
    elif len(folders) == classes:
        numbers = list(range(classes))
    else:
        raise DataError(
            f"{str(path)!r} holds {len(folders)} folders; it needs one for each of the {classes} "
            f"classes, if need be empty, or folders named by the number of the class"
        )
    files, labels = [], []
    for folder, number in zip(folders, numbers, strict=True):
        images = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
        files += images
        labels += [number] * len(images)
    return files, np.array(labels, dtype=np.int64)
