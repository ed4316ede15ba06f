"""Low-rank compression: truncated SVD that keeps a share of the energy."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int]
"""Rows and columns of a matrix."""


def rank_for_energy(singular_values: NDArray[Any], energy: float) -> int:
    """Return the smallest k for which ``Σ_{i<=k} σ_i² >= energy Σ_i σ_i²``, at least 1.

    Parameters
    ----------
    singular_values : ndarray
        Shape (r,), descending.
    energy : float
        In (0, 1].
    """
    kept = np.cumsum(singular_values.astype(np.float64) ** 2)
    return min(len(kept), int(np.searchsorted(kept, energy * kept[-1])) + 1)


def compressed(
    matrices: Sequence[NDArray[np.float32]], energy: float
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Compress matrices to the concatenated factors of their truncated SVD.

    Parameters
    ----------
    matrices : sequence of ndarray
        Two-dimensional.
    energy : float
        Share of the sum of squared entries of each matrix that is kept, in (0, 1].

    Returns
    -------
    factors : ndarray
        One-dimensional: ``U S`` (m, k) and V (k, n) of each matrix (m, n), or the matrix itself if
        that is not longer.
    ranks : ndarray
        k of each matrix, 0 for an uncompressed one.
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
