"""The natural splits: a client has the samples of its folder or file, or those of column values."""

import functools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.folders import Owners, tables_at
from fedkd_flwr.data.registry import (
    BY_FILE,
    CLIENTS,
    FOLDER,
    HUB,
    DataError,
    hub_id_of,
    is_function,
    reads_data,
)
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import load_images
from strategies.core.randomness import random_generator

Indices = NDArray[np.int64]
"""Positions of samples in a data set, or of names among those of `Owners`."""


def owners_of(settings: DataSettings) -> Owners:
    """Return whose each sample of the data set is."""
    name = settings.dataset
    if settings.partition == BY_FILE:
        if not name.startswith(CLIENTS):
            raise DataError(f"partition = by-file needs dataset = {CLIENTS}PATH")
    elif not is_function(name):
        if not settings.client_column:
            raise DataError(
                "partition = by-column needs client-column, the column that names clients"
            )
        return _owners_in_column(name, settings.data_root, settings.client_column)
    found = load_images(name, settings.data_root, settings.data_format).owners
    if found is None:
        raise DataError(
            f"partition = by-column: {name} returns no clients; it should return "
            "(samples (n, ...), labels (n,), clients (n,))"
        )
    return found


@reads_data
@functools.lru_cache(maxsize=2)
def _owners_in_column(dataset: str, data_root: str, column: str) -> Owners:
    # Deferred: Arrow is loaded for tables alone.
    from fedkd_flwr.data.tables import read_column, read_table, require_column, schema_of, values_in

    setting = f"client-column = {column}"
    if hub_id := hub_id_of(dataset):
        require_column(schema_of(hub_id, data_root), column, f"{setting}: {dataset}")
        parts = read_column(hub_id, column, data_root)
    else:
        is_folder = dataset.startswith(FOLDER)
        places = tables_at(Path(dataset.removeprefix(FOLDER))) if is_folder else []
        if not places:
            raise DataError(
                f"{setting}: {dataset} has no columns; use a Parquet file, an Arrow folder or a "
                f"set of the hub ({HUB}ORG/NAME), or partition = module:function"
            )
        tables = [read_table(place) for place in places]
        for table in tables:
            require_column(table.schema, column, f"{setting}: {dataset}")
        parts = [table.column(column) for table in tables]
    found = [value for part in parts for value in values_in(part, f"{setting} of {dataset}")]
    if len({type(value) for value in found}) > 1:
        raise DataError(
            f"{setting} of {dataset} holds text in some files and whole numbers in others; it "
            "should hold the same in all"
        )
    return Owners.named(np.array(found))


def test_positions(settings: DataSettings) -> Indices:
    """Return the positions of the samples that are test samples whatever ``client-split`` says."""
    if not settings.dataset.startswith(CLIENTS):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(owners_of(settings).is_test)


def names_of_clients(settings: DataSettings, num_clients: int, seed: int) -> list[Indices]:
    """Return which names among those of `owners_of` each client has, by their positions.

    Of files, client n has the n-th. With fewer clients than values, these are spread over them at
    random, and their numbers differ by at most one.
    """
    number = len(owners_of(settings).names)
    if num_clients > number:
        column = settings.client_column
        found = f"client-column = {column} has {number} values, too few for {num_clients} clients"
        if not column:
            found = f"{settings.dataset} has {number} clients, too few for {num_clients}"
        raise DataError(f"{found}; set num-clients to at most {number}, or 0 for all")
    order = np.arange(number)
    if settings.partition == BY_FILE:
        order = order[:num_clients]
    elif num_clients < number:
        order = random_generator(seed, "partition").permutation(number)
    return np.array_split(order, num_clients)


def split_naturally(
    settings: DataSettings, private: Indices, num_clients: int, seed: int
) -> list[Indices]:
    """Split samples by their owners into N sorted arrays of positions in `private`."""
    owners = owners_of(settings)
    shares = []
    for own in names_of_clients(settings, num_clients, seed):
        shares.append(np.flatnonzero(np.isin(owners.clients[private], own)))
        if not len(shares[-1]):
            raise DataError(
                f"no sample with {settings.client_column or 'client'} = "
                f"{', '.join(str(owners.names[n]) for n in own)} is left for its client after "
                "held-out-size and max-samples; lower num-clients or held-out-size"
            )
    return shares
