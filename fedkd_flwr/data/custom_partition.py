"""Custom splits over clients, by a function ``(labels, num_clients, seed) -> index arrays``."""

import inspect

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.custom_objects.importing import CustomObjectError, find_callable, told
from fedkd_flwr.data.registry import DataError

SIGNATURE = "(labels, num_clients, seed) -> list of index arrays"

POSITIONS = "positions"
"""Name of a parameter that a split may have besides: where its samples are in the data set."""


def call_for_partition(
    name: str,
    labels: NDArray[np.int64],
    num_clients: int,
    seed: int,
    positions: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """Call a function for a split, and check that it returns it at a second call too.

    `positions` (n,) are those of the samples in the data set, for a function with such a parameter.
    """
    try:
        split = find_callable(name, SIGNATURE)
    except CustomObjectError as error:
        raise DataError(f"partition: {error}") from error
    try:
        asks = POSITIONS in inspect.signature(split).parameters
        more = {POSITIONS: positions.copy()} if asks else {}
        returned, again = (list(split(labels.copy(), num_clients, seed, **more)) for _ in range(2))
    # A user's function may raise anything.
    except Exception as error:
        raise DataError(f"partition {name} fails: {told(error)}") from error
    if len(returned) != num_clients:
        raise DataError(
            f"partition {name} returns {len(returned)} index arrays for {num_clients} clients; it "
            f"should be {SIGNATURE}"
        )
    shares = [
        _checked(f"partition {name}: client {client}", share, len(labels))
        for client, share in enumerate(returned)
    ]
    _require_disjoint(name, shares, len(labels))
    if not all(map(np.array_equal, returned, again)):
        raise DataError(
            f"partition {name} returns another split at each call: draw with "
            "numpy.random.default_rng(seed) inside of it"
        )
    return shares


def _checked(owner: str, share: object, num_samples: int) -> NDArray[np.int64]:
    try:
        indices = np.asarray(share)
    except ValueError as error:
        raise DataError(f"{owner} has no array of indices ({error})") from error
    if indices.size == 0:
        raise DataError(f"{owner} has no sample; every client needs some")
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise DataError(
            f"{owner} has an array {indices.shape} of {indices.dtype}; it should be whole numbers "
            "(samples,)"
        )
    if indices.min() < 0 or indices.max() >= num_samples:
        raise DataError(
            f"{owner} has indices from {indices.min()} to {indices.max()}; allowed are 0 to "
            f"{num_samples - 1}"
        )
    return np.sort(indices.astype(np.int64))


def _require_disjoint(name: str, shares: list[NDArray[np.int64]], num_samples: int) -> None:
    owners = np.bincount(np.concatenate(shares), minlength=num_samples)
    if owners.max() <= 1:
        return
    sample = owners.argmax()
    clients = [n for n, share in enumerate(shares) for _ in range((share == sample).sum())]
    raise DataError(
        f"partition {name}: sample {sample} belongs to the clients "
        f"{', '.join(map(str, clients))}; each sample may have one owner"
    )
