"""Columns of data sets in Parquet files or on the Hugging Face hub, as Arrow arrays."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.storage import PARTS, hub_parts, parquet_files

Column: TypeAlias = "pa.ChunkedArray[Any]"
"""A column of an Arrow table."""


def read_column(hub_id: str, column: str, data_root: str = "") -> list[Column]:
    """Return one column of each part of a data set, train part first.

    The parts may store it in different types, such as int32 and int64. Raises `DataError` if the
    data set or the column is missing, or a file is damaged.
    """
    if not data_root:
        return _read_hub(hub_id, column)
    return [read_parquet(path, [column]) for path in parquet_files(hub_id, data_root)]


def read_parquet(path: Path, columns: Sequence[str]) -> Column:
    """Return the first of the named columns that a Parquet file has.

    Raises `DataError` if it has none of them, or cannot be read.
    """
    try:
        file = pa.parquet.ParquetFile(path)
        present = [name for name in columns if name in file.schema_arrow.names]
        if present:
            return file.read(columns=present[:1]).column(0)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    raise DataError(f"{str(path)!r} has no column {' or '.join(map(repr, columns))}")


def _read_hub(hub_id: str, column: str) -> list[Column]:
    import datasets  # deferred: takes a second, and runs with a data root do without

    parts = hub_parts(hub_id)
    columns = []
    for part in (part for part in PARTS if part in parts):
        table = parts[part].select_columns([column])
        if isinstance(table.features[column], datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
        columns.append(table.with_format("arrow")[:].column(0))
    return columns


IMAGES, LABELS = "image", "label"
"""What a column holds: image files, or classes."""

KNOWN_COLUMNS = {IMAGES: ("image", "img"), LABELS: ("label", "fine_label")}
"""Names that a column of either kind most often has."""


def schema_of(hub_id: str, data_root: str = "") -> pa.Schema:
    """Return the columns of a data set of the hub, or of a data root.

    Raises `DataError` if the data set is missing or damaged.
    """
    if data_root:
        return _opened(parquet_files(hub_id, data_root)[0]).schema_arrow
    parts = hub_parts(hub_id)
    present = [part for part in PARTS if part in parts]
    if not present:
        raise DataError(f"data set {hub_id} has no part named {' or '.join(PARTS)}")
    return parts[present[0]].features.arrow_schema


def image_column(schema: pa.Schema, data_format: DataFormat, owner: str) -> str:
    """Return the column of images; see `find_column`.

    A public set may have other columns than the private one that the settings describe.
    """
    wanted = data_format.image_column
    is_named = data_format.labeled or wanted in schema.names
    return find_column(schema, IMAGES, wanted if is_named else "", owner)


def find_column(schema: pa.Schema, kind: str, wanted: str, owner: str) -> str:
    """Return the column of images or of classes.

    `kind` is `IMAGES` or `LABELS`. It is found where `wanted` is empty. Raises `DataError` if there
    is no such column, or none or several fit.
    """
    is_of_kind = _holds_files if kind == IMAGES else pa.types.is_integer
    fitting = [field.name for field in schema if is_of_kind(field.type)]
    known = [name for name in KNOWN_COLUMNS[kind] if name in schema.names]
    found = [name for name in schema.names if name == wanted] if wanted else known[:1] or fitting
    if len(found) == 1:
        return found[0]
    raise DataError(
        f"{owner} has the columns {', '.join(schema.names)}: set {kind}-column to the one that "
        f"holds the {kind}s"
    )


def _holds_files(column: pa.DataType) -> bool:
    if pa.types.is_struct(column):
        return column.get_field_index("bytes") >= 0
    return pa.types.is_binary(column) or pa.types.is_large_binary(column)


def read_table(path: Path) -> pa.Table:
    """Return a Parquet file, or a folder as ``Dataset.save_to_disk`` of `datasets` writes it.

    Raises `DataError` if it cannot be read.
    """
    if path.is_file():
        try:
            return _opened(path).read()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    try:
        state = json.loads((path / "state.json").read_text())
        files = [path / Path(entry["filename"]).name for entry in state["_data_files"]]
        maps = [pa.memory_map(str(file)) for file in files]
        return pa.concat_tables([pa.ipc.open_stream(source).read_all() for source in maps])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as an Arrow folder: {error!r}") from error


def _opened(path: Path) -> pa.parquet.ParquetFile:
    try:
        return pa.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error


def names_of_labels(path: Path, label_column: str) -> list[str]:
    """Return the names of the classes that a table records for its labels, by number.

    Hugging Face writes the features of a data set into the metadata of its schema; a column of the
    feature ``ClassLabel`` has names. Empty where the table records none. Raises `DataError` if the
    table cannot be read, or has no such column.
    """
    schema = _opened(path).schema_arrow if path.is_file() else read_table(path).schema
    column = find_column(schema, LABELS, label_column, repr(str(path)))
    try:
        recorded = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = recorded["info"]["features"][column]["names"]
    except (ValueError, KeyError, TypeError):
        return []
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []


def encoded_images(column: Column) -> list[bytes]:
    """Return the files in an image column: structs with a field ``bytes``, or bytes.

    Raises `DataError` if the column holds something else, such as names of files, or a row has no
    image.
    """
    if not _holds_files(column.type):
        raise DataError(
            f"the image column holds {column.type}; it should hold image files, as bytes or as "
            "structs with a field bytes: set image-column to such a column"
        )
    encoded = _field(column, "bytes") if pa.types.is_struct(column.type) else column
    if missing := encoded.null_count:
        if missing == len(column) and _has_paths(column):
            raise DataError("the image column names files and does not hold them")
        raise DataError(f"{missing} of {len(column)} rows have no image; remove these rows")
    files: list[Any] = encoded.to_pylist()
    return files


def _has_paths(column: Column) -> bool:
    if not pa.types.is_struct(column.type) or column.type.get_field_index("path") < 0:
        return False
    return _field(column, "path").null_count < len(column)


def _field(column: Column, name: str) -> Column:
    """Return a field of a column of structs."""
    field: Column = pa.compute.struct_field(column, name)
    return field


def whole_numbers(column: Column) -> NDArray[np.int64]:
    """Return a label column, shape (n,), int64.

    Raises `DataError` if one of its entries is missing or no whole number.
    """
    try:
        # A column's own `to_numpy` loads pandas, which takes a second.
        numbers = np.from_dlpack(column.cast(pa.int64()).combine_chunks())
    except pa.ArrowException as error:
        raise DataError(f"the label column holds more than whole numbers: {error}") from error
    return numbers.astype(np.int64)


def groups_in(table: pa.Table, column: str) -> list[str]:
    """Return the group of each row of a table, as its column of groups names it.

    Raises `DataError` if the table has no such column, or a row has no group.
    """
    if column not in table.schema.names:
        raise DataError(f"group-column: the table has no column {column!r}")
    found = table.column(column)
    if found.null_count:
        raise DataError(f"group-column = {column} has {found.null_count} empty rows")
    return [str(value) for value in found.to_pylist()]
