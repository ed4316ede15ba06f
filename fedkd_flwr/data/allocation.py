"""Allocate the samples of a data set by how many of each class each client gets."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.settings import DataSettings

Indices = NDArray[np.int64]
"""Positions of samples in a data set, or numbers of samples."""

Split = Callable[[Indices, int, DataSettings, np.random.Generator], list[Indices]]
"""From classes (n,), N, settings and a generator to the positions of each client's samples."""


@dataclass(frozen=True, eq=False)
class Supply:
    """The classes of samples to allocate, and how many there are of each: shape (K,)."""

    classes: Indices
    available: Indices


Counts = Callable[[Supply, int, DataSettings, np.random.Generator], Indices]
"""From a supply, N, settings and a generator to samples of each class for each client, (N, K)."""


def allocate(labels: Indices, counts: Indices, generator: np.random.Generator) -> list[Indices]:
    """Allocate random samples, so many of each class to each client.

    Labels (n,) are positions 0..K-1 in `counts` (N, K), of which a column sums to no more than the
    class holds. Return N sorted arrays of positions; remaining samples are unused.
    """
    clients, classes = counts.shape
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for label in range(classes):
        samples = generator.permutation(np.flatnonzero(labels == label))
        for share, part in zip(shares, np.split(samples, counts[:, label].cumsum()), strict=False):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def by_class_counts(counts: Counts) -> Split:
    """Make a split of a function that says how many samples of each class each client gets."""

    @functools.wraps(counts)
    def split(
        labels: Indices, num_clients: int, settings: DataSettings, generator: np.random.Generator
    ) -> list[Indices]:
        classes, positions = np.unique(labels, return_inverse=True)
        supply = Supply(classes, np.bincount(positions))
        return allocate(positions, counts(supply, num_clients, settings, generator), generator)

    return split


def too_few(samples: int, num_clients: int, minimum: int) -> str:
    """Return the sentence about a minimum that the data cannot meet."""
    return (
        f"{samples} samples are too few for {num_clients} clients with at least {minimum} each; "
        f"set minimum-size to at most {samples // num_clients}, or fewer num-clients"
    )


def runs_out(supply: Supply, needed: Indices) -> str:
    """Return the sentence that names the class with the largest shortfall."""
    worst = (supply.available - needed).argmin()
    return (
        f"class {supply.classes[worst]} runs out: the clients that get it need at least "
        f"{needed[worst]} samples, and the data set has {supply.available[worst]}; set fewer "
        "num-clients, or partition to iid"
    )
