"""Custom data from a function: a table of 13 measurements per sample, three classes.

uv run fedkd run -c dataset=examples.own_data:wines -c models=mlp,examples.own_data:Perceptron \
    -c num-clients=4 -c partition=iid -c client-split=60/0/40 -c held-out-size=40 -c public-size=40
"""

import numpy as np
from sklearn.datasets import load_wine
from torch import nn


def wines() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's wines and their classes."""
    samples, labels = load_wine(return_X_y=True)
    return samples, labels


def uneven(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
    """Split samples at random into parts whose sizes are as 1 to 2 to 3 and so on.

    uv run fedkd run -c strategy=local -c partition=examples.own_data:uneven
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    ends = np.cumsum(np.arange(1, num_clients)) / (num_clients * (num_clients + 1) / 2)
    return np.split(order, (ends * len(labels)).astype(int))


class Perceptron(nn.Sequential):
    """One hidden layer of 32 units."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, classes))
