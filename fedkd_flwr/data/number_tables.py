"""Tables of numbers: which columns are read, and how rows become samples and classes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.data.content_split import UNGROUPED, Grouping
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.tables import (
    IMAGES,
    KNOWN_COLUMNS,
    find_label,
    groups_in,
    holds_files,
    numbered,
    recorded_names,
)

MOST_NAMED = 6
"""Most columns or classes that the line on what was read names."""


class NumberTable(NamedTuple):
    """The rows of one or more tables as samples.

    Samples (n, columns) are float32, missing values NaN; one column of lists gives (n, ...). Labels
    (n,) are int64, and `sizes` are the numbers of rows of each table. `groups` are those of the
    rows, if they were asked for; `said` is what was read and what was left out, in one line.
    """

    samples: Tensor
    labels: NDArray[np.int64]
    sizes: list[int]
    columns: tuple[str, ...]
    groups: list[str]
    said: str


def holds_numbers(schema: pa.Schema, data_format: DataFormat) -> bool:
    """Return whether the samples in a table are numbers, and no image files."""
    if data_format.feature_columns:
        return True
    named = {data_format.image_column, *KNOWN_COLUMNS[IMAGES]}
    return not any(holds_files(field.type) or field.name in named for field in schema)


def numbers_in(
    tables: Sequence[pa.Table],
    data_format: DataFormat,
    owner: str,
    grouping: Grouping = UNGROUPED,
) -> NumberTable:
    """Return the rows of some tables, which have the same columns in any order."""
    schema, label, classes = tables[0].schema, "", [""]
    labels = np.zeros(sum(map(len, tables)), dtype=np.int64)
    if data_format.labeled:
        label = find_label(schema, data_format, owner, is_image=False)
        _require_columns(tables, [label], owner)
        labels, classes = numbered(
            [table.column(label) for table in tables],
            [recorded_names(table.schema, label) for table in tables],
            data_format.classes,
            f"{owner}, label-column {label!r}",
        )
    others = {label, data_format.label_column, data_format.client_column, grouping.column}
    columns = data_format.feature_columns or _columns_of_numbers(tables, others, owner)
    _require_columns(tables, columns, owner)
    samples = np.concatenate([_samples(table, columns, owner) for table in tables])
    left_out = [name for name in schema.names if name not in {*columns, *others}]
    told = f"{owner}: {len(samples)} rows; {len(columns)} columns of numbers ({_listed(columns)})"
    if label:
        told += f"; {int(labels.max()) + 1} classes ({_listed(classes)}) in {label!r}"
    if left_out:
        told += f"; left out: {_listed(left_out)}"
    groups = [g for table in tables for g in groups_in(table, grouping.column)]
    sizes = list(map(len, tables))
    return NumberTable(torch.from_numpy(samples), labels, sizes, tuple(columns), groups, told)


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([*names[:MOST_NAMED], *more])


def _require_columns(tables: Sequence[pa.Table], names: Sequence[str], owner: str) -> None:
    for table in tables:
        if missing := [name for name in names if name not in table.schema.names]:
            raise DataError(
                f"{owner} has no column {', '.join(map(repr, missing))}; it has "
                f"{', '.join(table.schema.names)}"
            )


def _columns_of_numbers(
    tables: Sequence[pa.Table], others: set[str], owner: str
) -> tuple[str, ...]:
    """Return all columns of numbers but some; ask whether what numbers the rows is one."""
    schema = tables[0].schema
    found = [f.name for f in schema if f.name not in others and _is_number(_innermost(f.type))]
    if not found:
        raise DataError(f"{owner} has no columns of numbers; it has {', '.join(schema.names)}")
    for name in found:
        values = pa.chunked_array([c for table in tables for c in table.column(name).chunks])
        is_whole = pa.types.is_integer(values.type)
        if is_whole and len(values) > 1 and len(values.unique()) == len(values):
            raise DataError(
                f"{owner}: column {name!r} has another whole number in each row, as identifiers "
                f"do: set feature-columns to the columns to read, of {','.join(found)}"
            )
    return tuple(found)


def _is_number(kind: pa.DataType) -> bool:
    is_kind = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_one(kind) for is_one in is_kind)


def _is_list(kind: pa.DataType) -> bool:
    is_kind = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_one(kind) for is_one in is_kind)


def _innermost(kind: Any) -> pa.DataType:
    while _is_list(kind):
        kind = kind.value_type
    innermost: pa.DataType = kind
    return innermost


def _samples(table: pa.Table, columns: Sequence[str], owner: str) -> NDArray[np.float32]:
    """Return a table's rows, (n, columns) float32; those of one column of lists (n, ...)."""
    found = [_numbers(table.column(name), f"{owner}: column {name!r}") for name in columns]
    if len(found) == 1 and found[0].ndim > 1:
        return found[0]
    return np.hstack([values.reshape(len(table), -1) for values in found])


def _numbers(column: Any, name: str) -> NDArray[np.float32]:
    """Return the numbers of a column, (n,), or (n, ...) if it has lists, float32."""
    shape = [len(column)]
    while _is_list(column.type):
        lengths = pa.compute.list_value_length(column)
        if lengths.null_count or len(lengths.unique()) > 1:
            raise DataError(f"{name} has lists of several lengths, or empty rows")
        column = pa.compute.list_flatten(column)
        shape.append(len(column) // max(math.prod(shape), 1))
    if not _is_number(column.type):
        raise DataError(
            f"{name} holds {column.type} and no numbers: write its values as numbers, or leave it "
            "out of feature-columns"
        )
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = column.cast(pa.float64(), safe=False).fill_null(math.nan).combine_chunks()
    numbers = np.from_dlpack(values).astype(np.float32).reshape(shape)
    if np.isinf(numbers).any():
        raise DataError(f"{name} has numbers that are not finite")
    return numbers
