"""The split inside a client: its samples into train, validation and test."""

import re
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.registry import DataError
from strategies.core.randomness import random_generator

LARGEST_SHARES = 2
"""Percentages whose sum is at most this are meant as shares, such as ``0.7/0.1/0.2``."""


def stratified_order(
    labels: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Order samples at random so that every stretch has about the classes of the whole.

    Each sample stands at the share of its class that lies before it: of four samples at 1/8, 3/8,
    5/8 and 7/8. So a cut anywhere divides every class in the same proportion. Return the positions
    0..n-1 in their new order.
    """
    shuffled = generator.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = np.bincount(labels)
    rank = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)
    place = (rank + 0.5) / np.repeat(sizes, sizes)
    return by_class[np.lexsort((generator.random(len(labels)), place))]


@lru_cache(maxsize=4)  # Each client of a process has the split of its run.
def read_split(fractions: str) -> tuple[tuple[float, ...], ...]:
    """Read percentages of train, validation and test, with alternatives: ``10|30/10/50``."""
    number = r"\d+(\.\d+)?"
    part = rf"{number}(\|{number})*"
    if re.fullmatch(f"{part}/{part}/{part}", fractions):
        parts = tuple(tuple(map(float, text.split("|"))) for text in fractions.split("/"))
        if sum(map(max, parts)) <= LARGEST_SHARES:
            meant = "/".join(f"{100 * part[0]:g}" for part in parts)
            raise DataError(f"client-split {fractions!r} is in percent: write {meant}")
        if sum(map(max, parts)) <= 100 and min(parts[0]) > 0 and min(parts[2]) > 0:
            return parts
    raise DataError(
        f"client-split {fractions!r} is not of the form train/validation/test in percent, at "
        f"most 100 in all and train and test above 0, such as 75/0/25 or 10|30|40/10/50"
    )


def chosen_percentages(fractions: str, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return a client's percentages of train, validation and test, shape (3,)."""
    drawn = (part[generator.integers(len(part))] for part in read_split(fractions))
    return np.fromiter(drawn, dtype=np.float64)


def split_client(
    labels: NDArray[np.int64],
    fractions: str,
    seed: int,
    partition_id: int,
    is_test: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split a client's samples into train, validation and test, each with the same classes.

    KT-pFL §5 75/0/25; PersFL §5 60/20/20; PerFed-CKT appendix E 10|30|40/10/50, where a client has
    one of the alternatives at random and leaves the rest unused. Where the data set names its test
    samples (`is_test`), the others are divided into train and validation in the proportion of the
    percentages. Return sorted positions in `labels`, no position in two; a part with a percentage
    above 0 has at least one sample. Raises `DataError` if the percentages are no such split, or the
    client has too few samples for it.
    """
    generator = random_generator(seed, "client-split", partition_id)
    percentages = chosen_percentages(fractions, generator)
    named = np.zeros(len(labels), dtype=bool) if is_test is None else is_test
    free = np.flatnonzero(~named)
    if named.any():
        percentages = np.array([*percentages[:2], 0]) * 100 / percentages[:2].sum()
    if len(free) < np.count_nonzero(percentages):
        raise DataError(
            f"client {partition_id} has {len(free)} samples, too few for the client-split "
            f"{fractions}, which needs {np.count_nonzero(percentages)}; set fewer num-clients, or "
            "another partition"
        )
    train, validation, test = (
        np.sort(free[part]) for part in _divided(labels[free], percentages, generator)
    )
    return train, validation, np.flatnonzero(named) if named.any() else test


def _divided(
    labels: NDArray[np.int64], percentages: NDArray[np.float64], generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return the positions of the three parts, each with at least one sample where it has any."""
    samples, wanted = len(labels), percentages.tolist()
    ends = [round(percent / 100 * samples) for percent in accumulate(wanted)]
    sizes = [
        max(end - start, int(percent > 0))
        for (start, end), percent in zip(pairwise([0, *ends]), wanted, strict=True)
    ]
    while sum(sizes) > samples:
        sizes[sizes.index(max(sizes))] -= 1
    order, (train, validation, test) = stratified_order(labels, generator), accumulate(sizes)
    return [order[:train], order[train:validation], order[validation:test]]
