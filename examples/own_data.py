"""Data of one's own from a function: a table of 13 measurements a sample, three classes.

uv run fedkd run -c dataset=examples.own_data:wines -c models=mlp,examples.own_data:Perceptron \
    -c num-clients=4 -c partition=iid -c client-split=60/0/40 -c held-out-size=40 -c public-size=40
"""

import numpy as np
from sklearn.datasets import load_wine
from torch import nn


def wines() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's wines, each column with mean 0 and deviation 1, and their classes."""
    samples, labels = load_wine(return_X_y=True)
    return (samples - samples.mean(axis=0)) / samples.std(axis=0), labels


class Perceptron(nn.Sequential):
    """One hidden layer of 32 units."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, classes))
