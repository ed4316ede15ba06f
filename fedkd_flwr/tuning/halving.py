"""Synchronous successive halving: a bracket of trials starts together, and half of it continues.

All trials of a bracket are judged at a rung before any continues, so each is compared with all
others of its bracket. Judging trials as they come would compare early ones with few others, and
its cost would depend on their order.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

BRACKET = 8
"""Trials of a full bracket."""

REDUCTION = 2
"""Of two trials at a rung, one continues."""

SHARES = (1 / 6, 1 / 2)
"""Shares of the rounds after which a bracket is halved; after fewer, slow starters lose."""


def rungs_of(rounds: int, evaluate_every: int) -> list[int]:
    """Return the rounds at which trials are judged, ascending; the last is all rounds.

    Parameters
    ----------
    rounds : int
        Rounds of a run.
    evaluate_every : int
        Interval of the evaluations; a rung has to be an evaluated round.
    """
    early = [max(1, round(rounds * share / evaluate_every)) * evaluate_every for share in SHARES]
    return [*sorted({rung for rung in early if rung < rounds}), rounds]


def ranked(accuracies: Mapping[int, float]) -> list[int]:
    """Return the trials of a rung by falling accuracy, the earlier of equals first."""
    return sorted(accuracies, key=lambda number: (-accuracies[number], number))


def continuing(trials: Sequence[int]) -> Sequence[int]:
    """Return which of the ranked trials of a rung continue."""
    return trials[: math.ceil(len(trials) / REDUCTION)]


def bracket_cost(size: int, costs: Sequence[float]) -> float:
    """Return what a bracket costs.

    Parameters
    ----------
    size : int
        Its trials.
    costs : sequence of float
        What one trial has cost when it reaches each rung, ascending.
    """
    total, alive = 0.0, size
    for before, cost in pairwise([0.0, *costs]):
        total += alive * (cost - before)
        alive = math.ceil(alive / REDUCTION)
    return total


def largest_bracket(costs: Sequence[float], left: float) -> int:
    """Return the size of the largest bracket that costs at most what is left; 0 for none."""
    sizes = range(BRACKET, 0, -1)
    return next((size for size in sizes if bracket_cost(size, costs) <= left), 0)
