"""How evenly accuracy is spread over clients: its lower end, and Jain's index."""

import math

import numpy as np
import pandas as pd

LOWER_END = 0.1
"""Share of the clients that the lower end speaks of."""


def bottom_decile(accuracies: pd.Series) -> float:
    """Return the accuracy that a tenth of the clients stays below; NaN without clients.

    Between two clients it is interpolated linearly.
    """
    return float(accuracies.quantile(LOWER_END))


def mean_of_worst_tenth(accuracies: pd.Series) -> float:
    """Return the mean accuracy of the worst tenth of the clients, at least one; NaN without."""
    worst = math.ceil(LOWER_END * len(accuracies))
    return float(accuracies.nsmallest(worst).mean())


def jains_index(accuracies: pd.Series) -> float:
    """Return Jain's index, (Σ a)² / (N Σ a²): 1 where all are equal, 1/N where one has it all.

    R. Jain, D. Chiu, W. Hawe, *A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems*, DEC-TR-301, 1984. NaN where all are zero.
    """
    squares = float(np.square(accuracies).sum())
    return float(accuracies.sum()) ** 2 / (len(accuracies) * squares) if squares else math.nan
