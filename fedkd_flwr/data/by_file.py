"""The split by files: each client has the samples of its folder or file."""

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.client_folders import Owners
from fedkd_flwr.data.registry import CLIENTS, OF_CLIENTS, PFLLIB, DataError
from fedkd_flwr.data.settings import DataSettings
from fedkd_flwr.data.sources import load_images

Indices = NDArray[np.int64]
"""Positions of samples in a data set."""


def test_positions(settings: DataSettings) -> Indices:
    """Return the positions of the samples that are test samples whatever ``client-split`` says."""
    if not settings.dataset.startswith(OF_CLIENTS):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(_owners(settings).is_test)


def num_clients_in(settings: DataSettings) -> int:
    """Return the number of clients with files.

    Raises `DataError` if the data set has none.
    """
    return int(_owners(settings).clients.max()) + 1


def names_of_clients(settings: DataSettings) -> tuple[str, ...]:
    """Return the folder or file of each client; empty where they have numbers alone."""
    return _owners(settings).names


def split_by_file(settings: DataSettings, private: Indices, num_clients: int) -> list[Indices]:
    """Return the samples of the first clients, as positions in `private`.

    Raises `DataError` if the data set has no files of clients, or of fewer clients, or a client
    would have no sample.
    """
    number, clients = num_clients_in(settings), _owners(settings).clients
    if num_clients > number:
        raise DataError(
            f"{settings.dataset} has {number} clients, too few for {num_clients}; set num-clients "
            f"to at most {number}, or 0 for all"
        )
    return [np.flatnonzero(clients[private] == client) for client in range(num_clients)]


def _owners(settings: DataSettings) -> Owners:
    found = None
    if settings.dataset.startswith(OF_CLIENTS):
        found = load_images(settings.dataset, settings.data_root, settings.data_format).owners
    if found is None:
        raise DataError(f"partition = by-file needs dataset = {CLIENTS}PATH or {PFLLIB}PATH")
    return found
