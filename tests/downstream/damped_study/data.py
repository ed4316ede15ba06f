"""Data of the study: scikit-learn's wines, and which site holds which."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_wine


def wines() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return 178 wines, 13 columns of mean 0 and deviation 1, and their three classes."""
    samples, labels = load_wine(return_X_y=True)
    return (samples - samples.mean(axis=0)) / samples.std(axis=0), labels


def by_vineyard(labels: NDArray[np.int64], num_clients: int, seed: int) -> list[NDArray[np.int64]]:
    """Give each site most of one class, and some of the others."""
    generator = np.random.default_rng(seed)
    home = labels % num_clients
    moves = generator.random(len(labels)) < 0.4
    site = np.where(moves, generator.integers(0, num_clients, len(labels)), home)
    return [np.flatnonzero(site == n) for n in range(num_clients)]
