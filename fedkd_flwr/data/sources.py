"""Data sets as tensors: where they come from, and how they are decoded, once a machine.

The train and test part of a data set are pooled, train first: the papers split the pool over
clients and then into train and test inside each client.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import distribution, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.data.cache import cache_folder, keep_arrays, read_array
from fedkd_flwr.data.content_split import UNGROUPED, Grouping, content_keys, groups_of_files
from fedkd_flwr.data.custom_data import OwnArrays, as_data_set, call_for_data, joined_samples
from fedkd_flwr.data.decoding import DecodedImages, Levels, convert_images, decode_images
from fedkd_flwr.data.folders import (
    ARRAYS,
    MOST_NAMED,
    Owners,
    files_of_clients,
    find_images,
    owners_of_files,
    places_of_clients,
    read_arrays,
    tables_at,
)
from fedkd_flwr.data.registry import (
    CLIENTS,
    DATASETS,
    FOLDER,
    HUB,
    MOST_CLASSES,
    ON_DISK,
    DataError,
    DataFormat,
    Shape,
    Source,
    is_function,
    reads_data,
)
from fedkd_flwr.data.storage import TEST, TRAIN, digest_of, fingerprint, part_kind, parts_of
from fedkd_flwr.files import plain_name

if TYPE_CHECKING:
    from fedkd_flwr.data.tables import NumberTable

ANY = DataFormat()  # the config says nothing about the data
DECODING = 3  # increase this when decoding changes, so that older files of the cache are not used


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Decoded images (n, channels, height, width), uint8, with their classes (n,), int64.

    Own data may be float32 of any shape. `said` is what was read, what was left out, and how images
    were changed; `warning` what is suspicious. One of images that `are_leveled_together` can change
    all others.
    """

    images: Tensor
    labels: Tensor
    classes: int
    levels: Levels = field(default=Levels(), kw_only=True)
    are_leveled_together: bool = field(default=False, kw_only=True)
    said: str = field(default="", kw_only=True)
    warning: str = field(default="", kw_only=True)
    owners: Owners | None = field(default=None, kw_only=True)
    columns: tuple[str, ...] = field(default=(), kw_only=True)


def load_labels(name: str, data_root: str = "", data_format: DataFormat = ANY) -> NDArray[np.int64]:
    """Return the classes of all samples, (n,) int64, without decoding an image."""
    return _load_labels(name, data_root, _concerning(name, data_format))


def load_images(name: str, data_root: str = "", data_format: DataFormat = ANY) -> ImageSet:
    """Return a whole data set, decoded; the cache on disk has it for other processes."""
    return _load_images(name, data_root, _concerning(name, data_format))


def _concerning(name: str, data_format: DataFormat) -> DataFormat:
    """Return the settings that a data set reads, so that others do not load it again."""
    return data_format if name.startswith((HUB, FOLDER, CLIENTS)) else ANY


# The caches sit behind the public functions, so that a keyword argument is no other key.
@reads_data()
def _load_labels(name: str, data_root: str, data_format: DataFormat) -> NDArray[np.int64]:
    if (
        is_function(name)
        or name.startswith(ON_DISK)
        or _is_table_of_hub(name, data_root, data_format)
    ):
        return load_images(name, data_root, data_format).labels.numpy()
    source = _source(name, data_root, data_format)
    labels = _read_labels(name, data_root, data_format) if source.hub_id else bundled_digits()[1]
    _require_classes(labels, source.classes, f"data set {name!r}")
    labels.flags.writeable = False
    return labels


@reads_data()
def _source(name: str, data_root: str, data_format: DataFormat) -> Source:
    """Return where a data set lies: as the registry says, or as its own columns tell."""
    if not name.startswith(HUB):
        return DATASETS[name]
    from fedkd_flwr.data.tables import find_label, image_column, schema_of

    hub_id = name.removeprefix(HUB)
    schema = schema_of(hub_id, data_root)
    images = image_column(schema, data_format, name)
    is_labeled = data_format.labeled
    label_column = find_label(schema, data_format, name, is_image=True) if is_labeled else ""
    return Source(hub_id, images, label_column, data_format.shape, data_format.classes)


def _read_labels(name: str, data_root: str, data_format: DataFormat) -> NDArray[np.int64]:
    path = _path_in_cache(name, data_root, data_format)
    kept = read_array(path, "labels")
    if kept is not None:
        return kept.numpy()
    # Deferred: digits need no Arrow, nor does what was decoded before.
    from fedkd_flwr.data.tables import numbered, read_column

    source = _source(name, data_root, data_format)
    if not source.label_column:
        parts = read_column(source.hub_id, source.image_column, data_root)
        return np.zeros(sum(map(len, parts)), dtype=np.int64)
    parts = read_column(source.hub_id, source.label_column, data_root)
    owner = f"{name}, label-column {source.label_column!r}"
    return numbered(parts, [[]] * len(parts), source.classes, owner)[0]


@reads_data()
def _load_images(name: str, data_root: str, data_format: DataFormat) -> ImageSet:
    if name.startswith(FOLDER):
        return _load_folder(Path(name.removeprefix(FOLDER)), data_format)
    if name.startswith(CLIENTS):
        return _load_clients(Path(name.removeprefix(CLIENTS)), data_format)
    if is_function(name):
        own = call_for_data(name)
        return _of_arrays(own, None if own.clients is None else Owners.named(own.clients))
    if _is_table_of_hub(name, data_root, data_format):
        from fedkd_flwr.data.tables import numbers_in, tables_of

        found = numbers_in(tables_of(name.removeprefix(HUB), data_root), data_format, name)
        return _of_numbers(found, data_format, name)
    source = _source(name, data_root, data_format)
    labels = torch.tensor(load_labels(name, data_root, data_format))
    classes = source.classes or int(labels.max()) + 1
    if not source.hub_id:
        return ImageSet(convert_images(bundled_digits()[0], source.shape), labels, classes)
    decoded = _read_images(name, data_root, data_format, labels)
    return _as_said(name, decoded, labels, classes, _Files())


def _load_folder(path: Path, data_format: DataFormat) -> ImageSet:
    if not path.exists():
        raise DataError(f"there is no folder {str(path)!r}")
    if table := _read_numbers(tables_at(path), path, data_format):
        return _of_numbers(table, data_format, repr(str(path)))
    return _load_files(path, _encoded_at(path, [path], data_format), data_format)


def _load_clients(path: Path, data_format: DataFormat) -> ImageSet:
    places = places_of_clients(path)
    files = files_of_clients(places)
    if files and files[0][0].suffix.lower() == ARRAYS:
        return _load_arrays(path, places, files)
    if table := _read_numbers([file for own in files for file in own], path, data_format):
        read = _of_numbers(table, data_format, repr(str(path)))
        owners = owners_of_files(places, files, table.sizes)
    else:
        found = _encoded_at(path, places, data_format, tables=files)
        read = _load_files(path, found, data_format)
        is_test = np.array([part == TEST for part in found.parts])
        owners = Owners(np.array(found.clients), is_test, tuple(place.name for place in places))
    return replace(read, owners=owners, said=f"{read.said}; {owners.described()}")


def _load_arrays(path: Path, places: list[Path], files: list[list[Path]]) -> ImageSet:
    pairs = [read_arrays(file) for own in files for file in own]
    (samples, labels), name = zip(*pairs, strict=True), repr(str(path))
    joined = as_data_set(name, (joined_samples(name, samples), np.concatenate(labels)))
    owners = owners_of_files(places, files, [*map(len, labels)])
    found = _of_arrays(joined, owners)
    shape = tuple(found.images.shape[1:])
    said = f"{path}: {len(found.labels)} samples {shape} of {found.classes} classes"
    return replace(found, said=f"{said}; {owners.described()}")


def _of_arrays(own: OwnArrays, owners: Owners | None) -> ImageSet:
    return ImageSet(own.samples, own.labels, int(own.labels.max()) + 1, owners=owners)


def _is_table_of_hub(name: str, data_root: str, data_format: DataFormat) -> bool:
    if not name.startswith(HUB):
        return False
    from fedkd_flwr.data.tables import holds_numbers, schema_of

    return holds_numbers(schema_of(name.removeprefix(HUB), data_root), data_format)


def _read_numbers(
    places: list[Path], path: Path, data_format: DataFormat, grouping: Grouping = UNGROUPED
) -> "NumberTable | None":
    """Return the rows of tables of numbers; None where there are none."""
    if not places:
        return None
    # Deferred, as above.
    from fedkd_flwr.data.tables import holds_numbers, numbers_in, read_table

    if not holds_numbers(read_table(places[0]).schema, data_format):
        return None
    tables = [read_table(place) for place in places]
    return numbers_in(tables, data_format, str(path), grouping)


def _of_numbers(table: "NumberTable", data_format: DataFormat, owner: str) -> ImageSet:
    _require_classes(table.labels, data_format.classes, owner)
    classes = data_format.classes or int(table.labels.max()) + 1
    labels = torch.from_numpy(table.labels)
    return ImageSet(table.samples, labels, classes, columns=table.columns, said=table.said)


def _load_files(
    path: Path, files: "_Files", data_format: DataFormat, levels: Levels | None = None
) -> ImageSet:
    """Decode the images of a folder or a table; what is decoded is kept for other processes."""
    _require_classes(files.labels, data_format.classes, repr(str(path)))
    labels = torch.from_numpy(files.labels)
    shape, encoded = data_format.shape, files.encoded
    given = [levels] if levels else []
    kept_at = _place_in_cache(path.name, lambda: (digest_of(encoded), shape, *given))
    decoded = _decoded(kept_at, labels, lambda: decode_images(encoded, shape, files.names, levels))
    classes = data_format.classes or int(labels.max()) + 1
    return _as_said(str(path), decoded, labels, classes, files)


def _as_said(
    name: str, decoded: DecodedImages, labels: Tensor, classes: int, files: "_Files"
) -> ImageSet:
    shape = " x ".join(map(str, decoded.images.shape[1:]))
    named = files.class_names if len(files.class_names) <= MOST_NAMED else []
    counted = [f"{own} {int((labels == k).sum())}" for k, own in enumerate(named)]
    of_each = f": {', '.join(counted)}" if counted else ""
    of_classes = f" of {classes} classes{of_each}" if classes > 1 else ""
    told = [f"{name}: {len(labels)} images ({shape}){of_classes}"]
    if files.left_out:
        told.append(f"left out: {', '.join(files.left_out)}")
    return ImageSet(
        decoded.images,
        labels,
        classes,
        levels=decoded.levels,
        are_leveled_together=decoded.are_leveled_together,
        said="; ".join([*told, *decoded.notes]),
        warning=decoded.warning and f"{name}: {decoded.warning}",
    )


def _read_images(
    name: str, data_root: str, data_format: DataFormat, labels: Tensor
) -> DecodedImages:
    def decode() -> DecodedImages:
        from fedkd_flwr.data.tables import encoded_images, read_column

        source = _source(name, data_root, data_format)
        parts = read_column(source.hub_id, source.image_column, data_root)
        return decode_images(
            [file for part in parts for file in encoded_images(part)], source.shape
        )

    return _decoded(_path_in_cache(name, data_root, data_format), labels, decode)


def _decoded(
    path: Path | None, labels: Tensor, decode: Callable[[], DecodedImages]
) -> DecodedImages:
    """Return the images kept in a file of the cache; those to be decoded are kept, with labels."""
    kept, reading = (read_array(path, name) for name in ("images", "reading"))
    if kept is not None and reading is not None:
        return DecodedImages.kept(kept, reading)
    found = decode()
    if path is not None:
        keep_arrays(path, {"images": found.images, "labels": labels, "reading": found.reading})
    return found


@reads_data()
def _path_in_cache(name: str, data_root: str, data_format: DataFormat) -> Path | None:
    def follows_from() -> tuple[object, ...]:
        source = _source(name, data_root, data_format)
        return fingerprint(source.hub_id, data_root), source

    return _place_in_cache(name, follows_from)


def _place_in_cache(name: str, follows_from: Callable[[], tuple[object, ...]]) -> Path | None:
    """Return a file of the cache, named by all that its content follows from; None if it is off."""
    folder = cache_folder()
    if folder is None:
        return None
    # Pillow decodes the images, and PyTorch resizes them.
    decoder = (version("pillow"), torch.__version__, DECODING)
    digest = hashlib.sha256(repr((*follows_from(), decoder)).encode()).hexdigest()
    return folder / f"{plain_name(name)}-{digest[:32]}.safetensors"


def _require_classes(labels: NDArray[np.int64], classes: int, owner: str) -> None:
    if not len(labels):
        raise DataError(f"{owner} has no samples")
    if labels.min() < 0 or (classes and labels.max() >= classes):
        raise DataError(
            f"{owner} holds classes {labels.min()} to {labels.max()}, "
            f"allowed are {f'0 to {classes - 1}' if classes else '0 and more'}"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnData(ImageSet):
    """A node's own data, with what its split follows from: samples with one key share a part.

    `folders` has ``train`` or ``test`` for each sample where the operator has both, else nothing.
    """

    keys: list[str]
    folders: list[str]


def load_node_data(
    path: str | Path,
    shape: Shape,
    classes: int,
    data_format: DataFormat = ANY,
    grouping: Grouping = UNGROUPED,
    levels: Levels | None = None,
) -> OwnData:
    """Load a node's own data: a folder with one folder per class, a table, or a function.

    Folders are classes by their number when all names are numbers. Else alphabetical order counts,
    and there must be one for every class, so that all nodes number the classes alike. `levels` are
    by default those of the data.
    """
    name, path = str(path), Path(path).expanduser()
    if is_custom(name) and not path.exists():
        if grouping != UNGROUPED:
            raise DataError("data of a function have no file names or columns to group them by")
        samples, own_labels, _ = call_for_data(name)
        if samples.shape[1:] != shape:
            raise DataError(f"{name} has samples {tuple(samples.shape[1:])}, the run's are {shape}")
        _require_classes(own_labels.numpy(), classes, name)
        keys = content_keys(sample.numpy().tobytes() for sample in samples)
        return OwnData(samples, own_labels, classes, keys=keys, folders=[])
    if not path.exists():
        raise DataError(f"there is no folder or Parquet file at {str(path)!r}")
    tables = tables_at(path)
    if tables and grouping.pattern:
        raise DataError("group-pattern reads file names; a table has a group-column")
    if grouping.column and not tables:
        raise DataError("group-column reads a table; images in folders have a group-pattern")
    data_format = replace(data_format, shape=shape, classes=classes)
    if table := _read_numbers(tables, path, data_format, grouping):
        return _own_numbers(table, data_format)
    files = _encoded_at(path, [path], data_format, grouping)
    decoded = _load_files(path, files, data_format, levels)
    keys = files.groups or content_keys(files.encoded)
    kinds = set() if tables else {part_kind(part.name) for part in parts_of(path)}
    # Images of a part for validation are divided like those for training.
    folders = [TEST if part == TEST else TRAIN for part in files.parts]
    folders = folders if {TRAIN, TEST} <= kinds else []
    return OwnData(**vars(decoded), keys=keys, folders=folders)


def _own_numbers(table: "NumberTable", data_format: DataFormat) -> OwnData:
    """Return a node's own table, whose columns have to be those of all nodes."""
    if not data_format.feature_columns:
        raise DataError(
            "a node's table needs feature-columns in the run config, so that all nodes read the "
            f"same columns in one order; this one has {', '.join(table.columns)}"
        )
    if table.samples.shape[1:] != data_format.shape:
        raise DataError(
            f"the table has samples {tuple(table.samples.shape[1:])}, the run's are "
            f"{data_format.shape}"
        )
    read = _of_numbers(table, data_format, "the table")
    keys = table.groups or content_keys(row.numpy().tobytes() for row in table.samples)
    return OwnData(**vars(read), keys=keys, folders=[])


@dataclass(eq=False)
class _Files:
    """The images of a folder or a table as files, with their names for messages and classes."""

    encoded: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    parts: list[str] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def _encoded_at(
    path: Path,
    places: list[Path],
    data_format: DataFormat,
    grouping: Grouping = UNGROUPED,
    tables: Sequence[Sequence[Path]] = (),
) -> _Files:
    if tables := tables or [own for place in places if (own := tables_at(place))]:
        return _encoded_in(tables, data_format, grouping)
    found = find_images(path, places, data_format)
    files = [image.file for image in found.images]
    if not files:
        raise DataError(
            f"{str(path)!r} has no samples: neither it nor its subfolders have a file with the "
            "suffix of an image; links to folders are not followed"
        )
    paths = [image.path for image in found.images]
    return _Files(
        [_content_of(file) for file in files],
        [repr(str(file)) for file in files],
        np.array([image.label for image in found.images], dtype=np.int64),
        [image.part for image in found.images],
        [image.client for image in found.images],
        groups_of_files(paths, grouping.pattern) if grouping.pattern else [],
        found.names,
        found.left_out,
    )


def _content_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{str(file)!r} cannot be read: {error.strerror or error}") from error


def _encoded_in(
    tables: Sequence[Sequence[Path]], data_format: DataFormat, grouping: Grouping
) -> _Files:
    from fedkd_flwr.data.tables import (
        encoded_images,
        find_label,
        groups_in,
        image_column,
        numbered,
        read_table,
        recorded_names,
    )

    found, columns, recorded = _Files(), [], []
    for client, place in ((client, place) for client, own in enumerate(tables) for place in own):
        table = read_table(place)
        images = image_column(table.schema, data_format, repr(str(place)))
        found.encoded.extend(encoded_images(table.column(images)))
        found.clients.extend([client] * len(table))
        found.parts.extend([part_kind(place.stem)] * len(table))
        found.names.extend(f"the image in row {row} of {str(place)!r}" for row in range(len(table)))
        found.groups.extend(groups_in(table, grouping.column))
        if data_format.labeled:
            label = find_label(table.schema, data_format, repr(str(place)), is_image=True)
            columns.append(table.column(label))
            recorded.append(recorded_names(table.schema, label))
    found.labels = np.zeros(len(found.encoded), dtype=np.int64)
    if columns:
        owner = f"{tables[0][0].name}, the label column"
        found.labels, _ = numbered(columns, recorded, data_format.classes, owner)
    return found


BUNDLED_DIGITS = "sklearn/datasets/data/digits.csv.gz"
"""File of scikit-learn with one row per digit: 64 brightnesses from 0 to 16, and the class."""


def bundled_digits() -> tuple[Tensor, NDArray[np.int64]]:
    """Return scikit-learn's digits, (1797, 1, 8, 8) uint8, and their classes."""
    path = distribution("scikit-learn").locate_file(BUNDLED_DIGITS)
    rows = np.loadtxt(str(path), delimiter=",", dtype=np.uint8)
    brightness = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).round()
    return brightness.to(torch.uint8), rows[:, -1].astype(np.int64)


@reads_data()
def count_classes(name: str, data_root: str, data_format: DataFormat) -> int:
    """Return the largest class of a data set plus one; see `load_labels`."""
    classes = int(load_labels(name, data_root, data_format).max()) + 1
    if classes < 2:
        raise DataError(f"{name} has labels of one class; a model needs at least two")
    if classes > MOST_CLASSES:
        raise DataError(
            f"{name} has labels up to {classes - 1}, and at most {MOST_CLASSES} classes are "
            "allowed: number the classes 0, 1, 2, …"
        )
    return classes
