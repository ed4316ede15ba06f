"""The natural split: each client has the rows of one or more values of a column."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedkd_flwr.data.folders import tables_at
from fedkd_flwr.data.registry import FOLDER, HUB, DataError, hub_id_of, is_function, reads_data
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.data.tables import Column, read_column, read_table, schema_of
from strategies.core.randomness import random_generator

Indices = NDArray[np.int64]
"""Positions of samples in a data set."""


def client_values(settings: DataSettings) -> NDArray[np.generic]:
    """Return the value of the column ``client-column`` for each sample of the data set.

    Of a function they are the clients that it returns beside samples and labels. Shape (n,), text
    or whole numbers, in the order of the data set. Raises `DataError` if the data set has no such
    column, or a row has no value in it.
    """
    if is_function(settings.dataset):
        clients = load_images(settings.dataset).clients
        if clients is None:
            raise DataError(
                f"partition = by-column: {settings.dataset} returns no clients; it should return "
                "(samples (n, ...), labels (n,), clients (n,))"
            )
        return clients
    if not settings.client_column:
        raise DataError("partition = by-column needs client-column, the column that names clients")
    return _client_values(settings.dataset, settings.data_root, settings.client_column)


@reads_data
@functools.lru_cache(maxsize=2)
def _client_values(dataset: str, data_root: str, column: str) -> NDArray[np.generic]:
    parts = [_values_in(part, dataset, column) for part in _read(dataset, data_root, column)]
    found = [value for part in parts for value in part]
    if len({type(value) for value in found}) > 1:
        raise DataError(
            f"client-column = {column} of {dataset} holds text in some files and whole numbers in "
            "others; it should hold the same in all"
        )
    values = np.array(found)
    values.flags.writeable = False
    return values


def _values_in(found: Column, dataset: str, column: str) -> list[str] | list[int]:
    """Return the values in one part of a data set, which has a type of its own."""
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    is_word = pa.types.is_string(found.type) or pa.types.is_large_string(found.type)
    if not (is_word or pa.types.is_integer(found.type)):
        raise DataError(
            f"client-column = {column} of {dataset} holds {found.type}; it should hold text or "
            "whole numbers"
        )
    if found.null_count:
        raise DataError(f"client-column = {column} of {dataset} has {found.null_count} empty rows")
    values: list[Any] = found.to_pylist()
    return values


def _read(dataset: str, data_root: str, column: str) -> list[Column]:
    if hub_id := hub_id_of(dataset):
        _require_column(schema_of(hub_id, data_root), column, dataset)
        return read_column(hub_id, column, data_root)
    places = tables_at(Path(dataset.removeprefix(FOLDER))) if dataset.startswith(FOLDER) else []
    if not places:
        raise DataError(
            f"client-column = {column}: {dataset} has no columns; use a Parquet file, an Arrow "
            f"folder or a set of the hub ({HUB}ORG/NAME), or partition = module:function"
        )
    tables = [read_table(place) for place in places]
    for table in tables:
        _require_column(table.schema, column, dataset)
    return [table.column(column) for table in tables]


def _require_column(schema: pa.Schema, column: str, dataset: str) -> None:
    if column not in schema.names:
        raise DataError(
            f"client-column = {column}: {dataset} has the columns {', '.join(schema.names)}"
        )


def _said(settings: DataSettings) -> str:
    column = settings.client_column
    return f"client-column = {column}" if column else f"the clients of {settings.dataset}"


def values_of_clients(
    settings: DataSettings, num_clients: int, seed: int
) -> list[NDArray[np.generic]]:
    """Return which values of the column each client has.

    With as many clients as values, client n has the n-th value in sorted order. With fewer clients
    the values are spread over them at random; their numbers differ by at most one. Raises
    `DataError` if there are more clients than values.
    """
    values = np.unique(client_values(settings))
    if num_clients > len(values):
        raise DataError(
            f"{_said(settings)} has {len(values)} values, too few for "
            f"{num_clients} clients; set num-clients to at most {len(values)}, or 0 for a client "
            "of each value"
        )
    if num_clients < len(values):
        values = random_generator(seed, "partition").permutation(values)
    return np.array_split(values, num_clients)


def split_by_column(
    settings: DataSettings, private: Indices, num_clients: int, seed: int
) -> list[Indices]:
    """Split samples by the values of the column ``client-column``.

    Return N sorted arrays of positions in `private`, which holds positions in the data set. Raises
    `DataError` if the column cannot be read, or a client would have no sample.
    """
    held = client_values(settings)[private]
    of_clients = values_of_clients(settings, num_clients, seed)
    shares = [np.flatnonzero(np.isin(held, values)) for values in of_clients]
    for values, share in zip(of_clients, shares, strict=True):
        if not len(share):
            raise DataError(
                f"no sample with {settings.client_column or 'client'} = "
                f"{', '.join(map(str, values))} is left for its client after held-out-size and "
                "max-samples; lower num-clients or held-out-size"
            )
    return shares
