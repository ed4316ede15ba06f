"""Data sets in Parquet and CSV files or on the Hugging Face hub: columns, and tables of numbers."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkd_flwr.data.content_split import UNGROUPED, Grouping
from fedkd_flwr.data.custom_data import joined_samples, require_float32
from fedkd_flwr.data.registry import DataError, DataFormat
from fedkd_flwr.data.storage import PARTS, hub_parts, parquet_files
from strategies.core.flower import log

if TYPE_CHECKING:
    import datasets

Column: TypeAlias = "pa.ChunkedArray[Any]"  # a column of an Arrow table


def read_column(hub_id: str, column: str, data_root: str = "") -> list[Column]:
    """Return one column of each part of a data set, train part first; their types may differ."""
    if not data_root:
        return _read_hub(hub_id, column)
    return [read_parquet(path, column) for path in parquet_files(hub_id, data_root)]


@contextmanager
def _parquet(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file; what Arrow raises while it is open becomes one sentence."""
    try:
        yield pa.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error


def read_parquet(path: Path, column: str) -> Column:
    """Return a column of a Parquet file; raises `DataError` if it has none, or cannot be read."""
    with _parquet(path) as file:
        if column not in file.schema_arrow.names:
            raise DataError(f"{str(path)!r} has no column {column!r}")
        return file.read(columns=[column]).column(0)


def _read_hub(hub_id: str, column: str) -> list[Column]:
    import datasets  # deferred: takes a second, and no data root needs it

    columns = []
    for part in _parts_on_hub(hub_id):
        table = part.select_columns([column])
        if isinstance(table.features[column], datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
        columns.append(table.with_format("arrow")[:].column(0))
    return columns


def _parts_on_hub(hub_id: str) -> "list[datasets.Dataset]":
    parts = hub_parts(hub_id)
    present = [parts[part] for part in PARTS if part in parts]
    if not present:
        raise DataError(f"data set {hub_id} has no part named {' or '.join(PARTS)}")
    return present


TEXT_SUFFIXES = (".csv", ".tsv", ".txt")  # suffixes of tables as text
DELIMITERS = ",;\t|"  # what may stand between the columns of a table as text


def tables_of(hub_id: str, data_root: str = "") -> list[pa.Table]:
    """Return the parts of a data set of the hub or of a data root, whole, train part first."""
    if data_root:
        return [read_table(path) for path in parquet_files(hub_id, data_root)]
    return [part.with_format("arrow")[:] for part in _parts_on_hub(hub_id)]


IMAGES, LABELS = "image", "label"  # what a column holds: image files, or classes

KNOWN_COLUMNS = {IMAGES: ("image", "img"), LABELS: ("label", "fine_label", "class", "target")}
"""Names that a column of either kind most often has."""


def schema_of(hub_id: str, data_root: str = "") -> pa.Schema:
    """Return the columns of a data set of the hub, or of a data root."""
    if data_root:
        with _parquet(parquet_files(hub_id, data_root)[0]) as file:
            return file.schema_arrow
    return _parts_on_hub(hub_id)[0].features.arrow_schema


def image_column(schema: pa.Schema, data_format: DataFormat, owner: str) -> str:
    """Return the column of images; a public set may have another than the private one."""
    wanted = data_format.image_column
    is_named = data_format.labeled or wanted in schema.names
    fitting = [field.name for field in schema if holds_files(field.type)]
    return _find_column(schema, IMAGES, wanted if is_named else "", fitting, owner)


def find_label(schema: pa.Schema, data_format: DataFormat, owner: str, is_image: bool) -> str:
    """Return the column of classes: words, and beside images also numbers, true and false."""
    others = (data_format.client_column, *data_format.feature_columns)
    fitting = [
        field.name
        for field in schema
        if field.name not in others
        and (_holds_words(field.type) or (is_image and _holds_whole_numbers(field.type)))
    ]
    return _find_column(schema, LABELS, data_format.label_column, fitting, owner)


def _find_column(
    schema: pa.Schema, kind: str, wanted: str, fitting: Sequence[str], owner: str
) -> str:
    known = [name for name in KNOWN_COLUMNS[kind] if name in schema.names]
    found = [name for name in schema.names if name == wanted] if wanted else known[:1] or [*fitting]
    if len(found) == 1:
        return found[0]
    raise DataError(
        f"{owner} has the columns {', '.join(schema.names)}: set {kind}-column to the one that "
        f"holds the {kind}s"
    )


def _holds_text(column: pa.DataType) -> bool:
    return pa.types.is_string(column) or pa.types.is_large_string(column)


def _holds_words(column: pa.DataType) -> bool:
    return _holds_text(column) or pa.types.is_dictionary(column)


def _holds_whole_numbers(column: pa.DataType) -> bool:
    return pa.types.is_boolean(column) or pa.types.is_integer(column)


def holds_files(column: pa.DataType) -> bool:
    """Return whether a column holds files: bytes, or structs with a field ``bytes``."""
    if pa.types.is_struct(column):
        return column.get_field_index("bytes") >= 0
    return pa.types.is_binary(column) or pa.types.is_large_binary(column)


def read_table(path: Path) -> pa.Table:
    """Return a Parquet or CSV file, or a folder as ``Dataset.save_to_disk`` writes it."""
    if path.suffix.lower() in TEXT_SUFFIXES and path.is_file():
        return _read_text(path)
    if path.is_file():
        with _parquet(path) as file:
            return file.read()
    try:
        state = json.loads((path / "state.json").read_text())
        files = [path / Path(entry["filename"]).name for entry in state["_data_files"]]
        maps = [pa.memory_map(str(file)) for file in files]
        return pa.concat_tables([pa.ipc.open_stream(source).read_all() for source in maps])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{str(path)!r} cannot be read as an Arrow folder: {error!r}") from error


def _read_text(path: Path) -> pa.Table:
    """Return a table whose first line names the columns."""
    from pyarrow import csv

    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            first = file.readline()
        delimiter = max(DELIMITERS, key=first.count)
        parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        # A class without a name is missing, as a number is.
        converting = csv.ConvertOptions(strings_can_be_null=True)
        table = csv.read_csv(path, parse_options=parsing, convert_options=converting)
        names = table.schema.names
    # Arrow decodes the names of columns when they are first asked for.
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        text = " ".join(str(error).split())
        raise DataError(f"{str(path)!r} cannot be read as a table: {text}") from error
    told = f"{str(path)!r} begins with {first.strip()[:60]!r}, "
    if any(re.fullmatch(r"[-+.\d eE]+", name) for name in names):
        raise DataError(f"{told}which names no columns; write their names in the first line")
    if not all(names):
        raise DataError(
            f"{told}which leaves a column without a name: name it, or leave it out (index=False "
            "in pandas)"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{told}which names several columns {repeated[0]!r}: rename all but one")
    if other := [field.name for field in table.schema if holds_files(field.type)]:
        raise DataError(f"{str(path)!r}: column {other[0]!r} is not in UTF-8; save the file so")
    return table


def names_of_labels(path: Path, label_column: str) -> list[str]:
    """Return the names of the classes in a table, by number; empty where they have none."""
    table = read_table(path)
    is_image = any(holds_files(field.type) for field in table.schema)
    data_format = DataFormat(label_column=label_column)
    label = find_label(table.schema, data_format, repr(str(path)), is_image)
    recorded = recorded_names(table.schema, label)
    return numbered([table.column(label)], [recorded], 0, repr(str(path)))[1]


def recorded_names(schema: pa.Schema, column: str) -> list[str]:
    """Return the names of classes that Hugging Face wrote into a schema's metadata."""
    try:
        recorded = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = recorded["info"]["features"][column]["names"]
    except (ValueError, KeyError, TypeError):
        return []
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []


def encoded_images(column: Column) -> list[bytes]:
    """Return the files in an image column: structs with a field ``bytes``, or bytes."""
    if not holds_files(column.type):
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
    return pa.compute.struct_field(column, name)


def numbered(
    columns: Sequence[Column], recorded: Sequence[list[str]], classes: int, owner: str
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the classes in the label columns of some tables, (n,) int64, and their names.

    Tables that differ in the names that they record for numbers are joined by name. Words are
    numbered in their order, or by their value if all are numbers.
    """
    columns = [_plain(column, owner) for column in columns]
    are_whole = [pa.types.is_integer(column.type) for column in columns]
    if all(are_whole) and (not all(recorded) or all(names == recorded[0] for names in recorded)):
        return np.concatenate([_whole_numbers(column) for column in columns]), recorded[0]
    if any(whole and not names for whole, names in zip(are_whole, recorded, strict=True)):
        raise DataError(f"{owner} has names of classes in some files, and numbers in others")
    words = [_words(column, names, owner) for column, names in zip(columns, recorded, strict=True)]
    found = sorted({word for part in words for word in part})
    if all(are_whole):
        found = list(dict.fromkeys(name for names in recorded for name in names))
    elif all(word.isdecimal() for word in found):
        return np.array([int(word) for part in words for word in part], dtype=np.int64), []
    if classes and len(found) != classes:
        raise DataError(
            f"{owner} names {len(found)} classes, and num-classes is {classes}: write the numbers "
            f"of the classes, 0 to {classes - 1}, instead of names"
        )
    alike = Counter(word.strip().casefold() for word in found)
    if same := [word for word in found if alike[word.strip().casefold()] > 1]:
        log(WARNING, "%s: classes that are equal but for case or spaces are several classes: %s",
            owner, _listed([*map(repr, same)]))  # fmt: skip
    numbers = {word: number for number, word in enumerate(found)}
    return np.array([numbers[word] for part in words for word in part], dtype=np.int64), found


def _plain(column: Column, owner: str) -> Column:
    """Return a column of classes as words or whole numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise DataError(f"{owner}: {column.null_count} of {len(column)} rows have no class; "
                        "remove these rows")  # fmt: skip
    if _holds_whole_numbers(column.type):
        return column.cast(pa.int64())
    if _holds_text(column.type):
        return column.cast(pa.string())
    raise DataError(
        f"{owner} holds {column.type}; classes are whole numbers or words, and the numbers of a "
        "regression are no classes"
    )


def _whole_numbers(column: Column) -> NDArray[np.int64]:
    # a column's own `to_numpy` loads pandas, which takes a second.
    return np.from_dlpack(column.combine_chunks()).astype(np.int64)


def _words(column: Column, names: Sequence[str], owner: str) -> list[str]:
    if not pa.types.is_integer(column.type):
        return [str(word) for word in column.to_pylist()]
    numbers = _whole_numbers(column)
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= len(names):
        raise DataError(f"{owner} has numbers without a name, of {', '.join(names)}")
    return [names[number] for number in numbers]


def require_column(schema: pa.Schema, column: str, owner: str) -> None:
    """Refuse a table without a column."""
    if column not in schema.names:
        raise DataError(f"{owner} has the columns {', '.join(schema.names)}")


def values_in(column: Column, owner: str) -> list[str] | list[int]:
    """Return the values of a column of text or whole numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (_holds_text(column.type) or pa.types.is_integer(column.type)):
        raise DataError(f"{owner} holds {column.type}; it should hold text or whole numbers")
    if column.null_count:
        raise DataError(f"{owner} has {column.null_count} empty rows")
    values: list[Any] = column.to_pylist()
    return values


def groups_in(table: pa.Table, column: str) -> list[str]:
    """Return the group of each row of a table by its column of groups; empty without one."""
    if not column:
        return []
    if column not in table.schema.names:
        raise DataError(f"group-column: the table has no column {column!r}")
    found = table.column(column)
    if found.null_count:
        raise DataError(f"group-column = {column} has {found.null_count} empty rows")
    return [str(value) for value in found.to_pylist()]


MOST_NAMED = 6  # most columns or classes that the line on what was read names


class NumberTable(NamedTuple):
    """The rows of some tables as samples (n, ...), float32, missing values NaN.

    Labels (n,) are int64, `sizes` the numbers of rows of each table. `said` is what was read and
    what was left out.
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
    tables: Sequence[pa.Table], data_format: DataFormat, owner: str, grouping: Grouping = UNGROUPED
) -> NumberTable:
    """Return the rows of some tables, which have the same columns in any order."""
    schema, label, classes = _schema_of_all(tables), "", [""]
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
        if label not in (data_format.label_column, *KNOWN_COLUMNS[LABELS]):
            _require_classes(_joined(tables, schema.field(label)), label, classes, owner)
    others = {label, data_format.label_column, data_format.client_column, grouping.column}
    columns = data_format.feature_columns or _columns_of_numbers(tables, schema, others, owner)
    _require_columns(tables, columns, owner)
    samples = joined_samples(owner, [_samples(table, columns, owner) for table in tables])
    known = dict.fromkeys(name for table in tables for name in table.schema.names)
    left_out = [name for name in known if name not in {*columns, *others}]
    told = f"{owner}: {len(samples)} rows; {len(columns)} columns of numbers ({_listed(columns)})"
    if label:
        names = f" ({_listed(classes)})" if classes else ""
        told += f"; {int(labels.max()) + 1} classes{names} in {label!r}"
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


def _schema_of_all(tables: Sequence[pa.Table]) -> pa.Schema:
    """Return the columns of the first table, with types for the values of all tables.

    A column with numbers in one table and words in another is one of text.
    """
    fields = []
    for field in tables[0].schema:
        own = [
            pa.schema([t.schema.field(field.name)]) for t in tables if field.name in t.schema.names
        ]
        try:
            fields.append(pa.unify_schemas(own, promote_options="permissive").field(0))
        except pa.ArrowException:
            has_text = any(_holds_text(one.field(0).type) for one in own)
            fields.append(field.with_type(pa.string()) if has_text else field)
    return pa.schema(fields)


def _joined(tables: Sequence[pa.Table], field: "pa.Field[Any]") -> Column:
    """Return a column of some tables as one."""
    parts = [table.column(field.name).cast(field.type, safe=False) for table in tables]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], field.type)


def _columns_of_numbers(
    tables: Sequence[pa.Table], schema: pa.Schema, others: set[str], owner: str
) -> tuple[str, ...]:
    """Return all columns of numbers but some; ask whether what numbers the rows is one."""
    left = [field for field in schema if field.name not in others]
    numbers = [field for field in left if _is_number(_innermost(field.type))]
    texts = [field for field in left if _holds_text(field.type)]
    _require_columns(tables, [field.name for field in (*numbers, *texts)], owner)
    for field in texts:
        _refuse_unread_numbers(_joined(tables, field), f"{owner}: column {field.name!r}")
    found = tuple(field.name for field in numbers)
    if not found:
        raise DataError(f"{owner} has no columns of numbers; it has {', '.join(schema.names)}")
    for field in (field for field in numbers if pa.types.is_integer(field.type)):
        own = [table.column(field.name) for table in tables]
        if _is_unique(_joined(tables, field)) or all(map(_counts, own)):
            raise DataError(
                f"{owner}: column {field.name!r} has another whole number in each row, as "
                f"identifiers do: set feature-columns to the columns to read, of {','.join(found)}"
            )
    return found


def _is_unique(column: Column) -> bool:
    return 1 < len(column) == len(column.unique())


def _counts(column: Column) -> bool:
    """Return whether whole numbers count the rows, as identifiers of each client's own may do."""
    return _is_unique(column) and bool(np.ptp(_whole_numbers(column.drop_null())) < len(column))


def _require_classes(column: Column, label: str, classes: Sequence[str], owner: str) -> None:
    """Ask for the column of classes where the only column of text has identifiers or numbers."""
    if classes and _holds_text(column.type):
        _refuse_unread_numbers(column, f"{owner}: column {label!r}", "label-column")
    if 2 * len(classes) > len(column) > 2:
        raise DataError(
            f"{owner}: column {label!r} has another word in most rows, as identifiers do: set "
            "label-column to the column of classes"
        )


NUMBER = r"^\s*[-+]?(\d+([.,]\d+)?|\d{1,3}(,\d{3})+(\.\d+)?)([eE][-+]?\d+)?\s*%?\s*$"
"""How people write numbers, among them ``1,5``, ``1,000`` and ``5 %``."""


def _refuse_unread_numbers(column: Column, owner: str, among: str = "feature-columns") -> None:
    """Refuse a column of text in which most values are numbers: one ``?`` makes all of it text."""
    values = column.drop_null()
    others = values.filter(pa.compute.invert(pa.compute.match_substring_regex(values, NUMBER)))
    if 2 * len(others) >= len(values):
        return
    seen = (others if len(others) else values)[0].as_py()
    raise DataError(
        f"{owner} has numbers among text such as {seen!r}: write numbers as 1.5 and missing values "
        f"as empty cells, or set {among}"
    )


def _is_number(kind: pa.DataType) -> bool:
    is_kind = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_one(kind) for is_one in is_kind)


def _is_list(kind: pa.DataType) -> bool:
    is_kind = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_one(kind) for is_one in is_kind)


def _innermost(kind: Any) -> pa.DataType:
    while _is_list(kind):
        kind = kind.value_type
    return kind


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
    # A client may never have measured something.
    if not (_is_number(column.type) or pa.types.is_null(column.type)):
        raise DataError(
            f"{name} holds {column.type} and no numbers: write its values as numbers, or leave it "
            "out of feature-columns"
        )
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = column.cast(pa.float64(), safe=False).fill_null(math.nan).combine_chunks()
    numbers = np.from_dlpack(values).reshape(shape)
    if np.isinf(numbers.astype(np.float32)).any():
        raise DataError(f"{name} has numbers that are not finite")
    require_float32(numbers, name)
    return numbers.astype(np.float32)
