"""The digits that scikit-learn brings along, which need no download."""

from importlib.metadata import distribution

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUNDLED_DIGITS = "sklearn/datasets/data/digits.csv.gz"
"""File of scikit-learn with one row per digit: 64 brightnesses from 0 to 16, and the class."""


def bundled_digits() -> tuple[Tensor, NDArray[np.int64]]:
    """Return scikit-learn's digits, (1797, 1, 8, 8) uint8, and their classes.

    The file is read as it lies: importing scikit-learn for it takes seconds.
    """
    path = distribution("scikit-learn").locate_file(BUNDLED_DIGITS)
    rows = np.loadtxt(str(path), delimiter=",", dtype=np.uint8)
    brightness = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).round()
    return brightness.to(torch.uint8), rows[:, -1].astype(np.int64)
