"""Columns of data sets in Parquet files or on the Hugging Face hub, as Arrow arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from fedkd_flwr.data.catalogue import DataError
from fedkd_flwr.data.origin import PARTS, hub_parts, parquet_files

Column: TypeAlias = "pa.ChunkedArray[Any]"
"""A column of an Arrow table."""


def read_column(hub_id: str, column: str, data_root: str = "") -> Column:
    """Return one column of a data set, train part first.

    Parameters
    ----------
    hub_id : str
        Name on the Hugging Face hub, and folder in a data root.
    column : str
        Name of the column.
    data_root : str
        Folder that holds Parquet data sets by hub id; empty for the hub.

    Raises
    ------
    DataError
        If the data set or the column is missing, or a file is damaged.
    """
    if not data_root:
        return _read_hub(hub_id, column)
    files = parquet_files(hub_id, data_root)
    return _concatenate([read_parquet(path, [column]) for path in files])


def read_parquet(path: Path, columns: Sequence[str]) -> Column:
    """Return the first of the named columns that a Parquet file has.

    Raises
    ------
    DataError
        If it has none of them, or cannot be read.
    """
    try:
        file = pa.parquet.ParquetFile(path)
        present = [name for name in columns if name in file.schema_arrow.names]
        if present:
            return file.read(columns=present[:1]).column(0)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    raise DataError(f"{str(path)!r} has no column {' or '.join(map(repr, columns))}")


def _read_hub(hub_id: str, column: str) -> Column:
    import datasets  # deferred: takes a second, and runs with a data root do without

    parts = hub_parts(hub_id)
    columns = []
    for part in (part for part in PARTS if part in parts):
        table = parts[part].select_columns([column])
        if isinstance(table.features[column], datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
        columns.append(table.with_format("arrow")[:].column(0))
    return _concatenate(columns)


def _concatenate(columns: Sequence[Column]) -> Column:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks])


def encoded_images(column: Column) -> list[bytes]:
    """Return the files in an image column: structs with a field ``bytes``, or bytes.

    Raises
    ------
    DataError
        If the column holds names of files and not the files.
    """
    if pa.types.is_struct(column.type):
        column = pa.compute.struct_field(column, "bytes")
    if column.null_count:
        raise DataError("the image column names files and does not hold them")
    files: list[Any] = column.to_pylist()
    return files


def whole_numbers(column: Column) -> NDArray[np.int64]:
    """Return a label column, shape (n,), int64.

    Raises
    ------
    DataError
        If one of its entries is missing or no whole number.
    """
    try:
        # A column's own `to_numpy` loads pandas, which takes a second.
        numbers = np.from_dlpack(column.cast(pa.int64()).combine_chunks())
    except pa.ArrowException as error:
        raise DataError(f"the label column holds more than whole numbers: {error}") from error
    return numbers.astype(np.int64)
