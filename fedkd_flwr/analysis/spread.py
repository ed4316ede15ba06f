"""Fairness across clients: bottom decile, mean of the worst tenth, and Jain's index."""

import math

import numpy as np
import pandas as pd

WORST_SHARE = 0.1
"""Share of the clients that count as the worst ones."""


def bottom_decile(accuracies: pd.Series) -> float:
    """Return the 10th percentile of the accuracies, interpolated linearly; NaN without clients."""
    return float(accuracies.quantile(WORST_SHARE))


def mean_of_worst_tenth(accuracies: pd.Series) -> float:
    """Return the mean accuracy of the worst tenth of the clients, at least one client."""
    worst = math.ceil(WORST_SHARE * len(accuracies))
    return float(accuracies.nsmallest(worst).mean())


def jains_index(accuracies: pd.Series) -> float:
    """Return Jain's index, (Σ a)² / (N Σ a²).

    It is 1 if all accuracies are equal, 1/N if only one is not zero, and NaN if all are zero.
    R. Jain, D. Chiu, W. Hawe, *A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems*, DEC-TR-301, 1984.
    """
    squares = float(np.square(accuracies).sum())
    return float(accuracies.sum()) ** 2 / (len(accuracies) * squares) if squares else math.nan
