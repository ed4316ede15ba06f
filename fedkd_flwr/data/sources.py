"""Data sets as tensors: where they come from, and how they are decoded, once a process.

The train and test part of a data set are pooled, train first: the papers split the pool over
clients and then into train and test inside each client.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

Column: TypeAlias = "pa.ChunkedArray[Any]"
"""A column of an Arrow table."""

PARTS = ("train", "test")
"""The parts of a data set that are pooled, in this order."""

GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""Brightness of red, green and blue (ITU-R BT.601), as image libraries turn colour to grey."""


class DataError(ValueError):
    """Data that cannot be had or cannot be split as asked; one sentence for the user."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it holds.

    Attributes
    ----------
    hub_id : str
        Name on the Hugging Face hub, and folder in a data root; empty for the bundled digits.
    image_column, label_column : str
        Columns of the images and of their classes.
    shape : tuple of int
        Channels, height and width.
    classes : int
        K, the number of classes.
    """

    hub_id: str
    image_column: str
    label_column: str
    shape: Shape
    classes: int


DATASETS: dict[str, Source] = {
    "digits": Source("", "", "", (1, 28, 28), 10),
    "mnist": Source("ylecun/mnist", "image", "label", (1, 28, 28), 10),
    "fashion-mnist": Source("zalando-datasets/fashion_mnist", "image", "label", (1, 28, 28), 10),
    # The letters, as in the experiments that the authors of KT-pFL released.
    "emnist": Source("tanganke/emnist_letters", "image", "label", (1, 28, 28), 26),
    "cifar10": Source("uoft-cs/cifar10", "img", "label", (3, 32, 32), 10),
    "cifar100": Source("uoft-cs/cifar100", "img", "fine_label", (3, 32, 32), 100),
}
"""The data sets, by the name that a run config gives them."""


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


def find_source(name: str) -> Source:
    """Return the data set of a name.

    Raises
    ------
    DataError
        If no data set has that name.
    """
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}; allowed are {', '.join(DATASETS)}")
    return DATASETS[name]


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
    if source.hub_id:
        column = _read_column(source, source.label_column, data_root)
        labels = column.to_numpy().astype(np.int64)
    else:
        labels = _bundled_digits()[1]
    _require_classes(labels, source.classes, f"data set {name!r}")
    labels.flags.writeable = False
    return labels


@functools.cache
def _load_images(name: str, data_root: str) -> ImageSet:
    source = find_source(name)
    if source.hub_id:
        encoded = _encoded_images(_read_column(source, source.image_column, data_root))
        images = decode_images(encoded, source.shape)
    else:
        images = convert_images(_bundled_digits()[0], source.shape)
    labels = torch.tensor(load_labels(name, data_root))
    return ImageSet(images, labels, source.classes)


def _bundled_digits() -> tuple[Tensor, NDArray[np.int64]]:
    """Return scikit-learn's digits, (1797, 1, 8, 8) uint8, and their classes."""
    from sklearn.datasets import load_digits  # deferred: most runs need other data

    digits = load_digits()
    brightness = torch.from_numpy(digits.images * (255 / 16)).round()
    return brightness.to(torch.uint8)[:, None], digits.target.astype(np.int64)


def _read_column(source: Source, column: str, data_root: str) -> Column:
    """Return one column of a data set, train part first."""
    if not data_root:
        return _read_hub_column(source, column)
    folder = Path(data_root).expanduser() / source.hub_id
    files = [path for part in PARTS for path in _parquet_files(folder, part)]
    if not files:
        raise DataError(
            f"data root {data_root!r} holds no Parquet file of {source.hub_id}: "
            f"looked for train*.parquet and test*.parquet in and below {str(folder)!r}"
        )
    return _concatenate([_read_parquet(path, [column]) for path in files])


def _parquet_files(folder: Path, part: str) -> list[Path]:
    """Return the Parquet files of one part, in order.

    They are named as ``train.parquet``, ``train-00000-of-00002.parquet`` or
    ``train/0000.parquet``, at any depth: the hub has written all of these.
    """
    return sorted(
        path
        for path in folder.rglob("*.parquet")
        if path.name.startswith(part) or path.parent.name == part
    )


def _read_parquet(path: Path, columns: Sequence[str]) -> Column:
    """Return the first of the named columns that a Parquet file has."""
    try:
        file = pa.parquet.ParquetFile(path)
        present = [name for name in columns if name in file.schema_arrow.names]
        if present:
            return file.read(columns=present[:1]).column(0)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    raise DataError(f"{str(path)!r} has no column {' or '.join(map(repr, columns))}")


def _read_hub_column(source: Source, column: str) -> Column:
    try:
        parts = datasets.load_dataset(source.hub_id)
    # The hub's client raises many unrelated kinds of error for "no network" and "no such set".
    except Exception as error:
        raise DataError(
            f"data set {source.hub_id} cannot be had from the Hugging Face hub "
            f"({type(error).__name__}); set data-root to a folder that holds it"
        ) from error
    columns = []
    for part in (part for part in PARTS if part in parts):
        table = parts[part].select_columns([column])
        if isinstance(table.features[column], datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
        columns.append(table.with_format("arrow")[:].column(0))
    return _concatenate(columns)


def _concatenate(columns: Sequence[Column]) -> Column:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks])


def _encoded_images(column: Column) -> list[bytes]:
    """Return the files in an image column: structs with a field ``bytes``, or bytes."""
    if pa.types.is_struct(column.type):
        column = pa.compute.struct_field(column, "bytes")
    if column.null_count:
        raise DataError("the image column names files and does not hold them")
    files: list[Any] = column.to_pylist()
    return files


def _require_classes(labels: NDArray[np.int64], classes: int, owner: str) -> None:
    if not len(labels):
        raise DataError(f"{owner} holds no sample")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{owner} holds classes {labels.min()} to {labels.max()}, "
            f"allowed are 0 to {classes - 1}"
        )


def decode_images(encoded: Sequence[bytes], shape: Shape) -> Tensor:
    """Decode image files (PNG, JPEG or WebP) to one shape.

    Parameters
    ----------
    encoded : sequence of bytes
        The n files.
    shape : tuple of int
        Channels (1 or 3), height and width that every image is brought to.

    Returns
    -------
    Tensor
        Shape (n, channels, height, width), uint8.

    Raises
    ------
    DataError
        If one of them cannot be decoded.
    """
    # Deferred: slow to import, and the bundled digits do without.
    from torchvision.io import ImageReadMode, decode_image

    mode = ImageReadMode.GRAY if shape[0] == 1 else ImageReadMode.RGB
    images = torch.empty((len(encoded), *shape), dtype=torch.uint8)
    for position, file in enumerate(encoded):
        try:
            image = decode_image(torch.frombuffer(bytearray(file), dtype=torch.uint8), mode)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"image {position} is no readable PNG, JPEG or WebP file") from error
        images[position] = image if image.shape == shape else convert_images(image[None], shape)[0]
    return images


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
        encoded, labels = _read_image_folder(path, classes)
    elif path.is_file():
        sources = [source for source in DATASETS.values() if source.hub_id]
        image_column = _read_parquet(path, sorted({source.image_column for source in sources}))
        label_column = _read_parquet(
            path, sorted({source.label_column for source in sources}, reverse=True)
        )
        encoded, labels = _encoded_images(image_column), label_column.to_numpy()
    else:
        raise DataError(f"there is no folder or Parquet file at {str(path)!r}")
    labels = labels.astype(np.int64)
    _require_classes(labels, classes, repr(str(path)))
    return ImageSet(decode_images(encoded, shape), torch.from_numpy(labels), classes)


def _read_image_folder(path: Path, classes: int) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the image files in torchvision's folder layout, and their classes."""
    from torchvision.datasets import ImageFolder  # deferred: only deployments need it

    try:
        folder = ImageFolder(path, allow_empty=True)
    except FileNotFoundError as error:
        raise DataError(f"{str(path)!r} holds no folder; it needs one for each class") from error
    names = folder.classes
    if all(name.isdecimal() for name in names):
        numbers = np.array([int(name) for name in names])
    elif len(names) == classes:
        numbers = np.arange(classes)
    else:
        raise DataError(
            f"{str(path)!r} holds {len(names)} folders; it needs one for each of the {classes} "
            f"classes, if need be empty, or folders named by the number of the class"
        )
    files = [Path(file).read_bytes() for file, _ in folder.samples]
    return files, numbers[np.array(folder.targets, dtype=np.int64)]
