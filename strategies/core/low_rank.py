"""Low-rank compression: truncated SVD that keeps a share of the energy."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int]
"""Rows and columns of a matrix."""


def rank_for_energy(singular_values: NDArray[Any], energy: float) -> int:
    """Return the smallest k >= 1 for which ``Σ_{i<=k} σ_i² >= energy Σ_i σ_i²``, σ descending."""
    kept = np.cumsum(singular_values.astype(np.float64) ** 2)
    return min(len(kept), int(np.searchsorted(kept, energy * kept[-1])) + 1)


def compressed(
    matrices: Sequence[NDArray[np.float32]], energy: float
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Compress matrices (m, n) to the concatenated factors of their truncated SVD, and the ranks k.

    A matrix is ``U S`` (m, k) and V (k, n) with a share `energy` of its squared entries, or itself
    with rank 0 if that is not longer.
    """
    parts, ranks = [], []
    for matrix in matrices:
        rows, columns = matrix.shape
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        rank = rank_for_energy(values, energy)
        if rank * (rows + columns) < rows * columns:
            parts += [left[:, :rank] * values[:rank], right[:rank]]
            ranks.append(rank)
        else:
            parts.append(matrix)
            ranks.append(0)
    flat = np.concatenate([part.reshape(-1) for part in parts])
    return flat.astype(np.float32), np.array(ranks, dtype=np.int32)


def lengths(shapes: Sequence[Shape], ranks: NDArray[np.integer[Any]]) -> list[int]:
    """Return the number of entries that `compressed` returns for each matrix."""
    return [
        int(rank) * (rows + columns) if rank else rows * columns
        for (rows, columns), rank in zip(shapes, ranks, strict=True)
    ]


def restored(
    factors: NDArray[np.float32], ranks: NDArray[np.integer[Any]], shapes: Sequence[Shape]
) -> Iterator[NDArray[np.float32]]:
    """Yield the matrices from the output of `compressed`."""
    ends = np.cumsum(lengths(shapes, ranks))
    stretches = np.split(factors, ends[:-1])
    for stretch, rank, (rows, columns) in zip(stretches, ranks, shapes, strict=True):
        if rank:
            left, right = np.split(stretch, [rank * rows])
            yield left.reshape(rows, rank) @ right.reshape(rank, columns)
        else:
            yield stretch.reshape(rows, columns)
