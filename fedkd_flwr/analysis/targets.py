"""The cost of reaching a mean accuracy: rounds, bytes, seconds."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import Run

COSTS = ("rounds_to_target", "bytes_to_target", "seconds_to_target")
"""Columns of the cost of a target."""


def check_target(target: float) -> None:
    """Refuse a target that is not an accuracy.

    Raises `ConfigError` if it is outside (0, 1].
    """
    if not 0 < target <= 1:
        raise ConfigError(
            f"The target {target:g} is not an accuracy: it must be above 0 and "
            "at most 1, such as 0.9."
        )


def cost_to_target(run: Run, target: float) -> dict[str, float]:
    """Return the cost of a run up to the first round with a mean accuracy.

    The `COSTS`: rounds, bytes both ways, and seconds of training, server and evaluation, that round
    included; NaN where it is never reached, or where some round was not evaluated: the target may
    have been reached in it.
    """
    rounds = run.rounds
    accuracies = rounds["accuracy_mean"].astype(float)
    reached = accuracies >= target
    if accuracies.isna().any() or not reached.any():
        return dict.fromkeys(COSTS, math.nan)
    until = rounds.loc[: reached.idxmax()]
    sizes = until["bytes_up"] + until["bytes_down"]
    seconds = until.filter(regex="^seconds_").sum(axis=1)
    totals = len(until), sizes.sum(), seconds.sum()
    return dict(zip(COSTS, map(float, totals), strict=True))


def without_partial_means(table: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the costs of methods that miss the target in some seed.

    A mean over the seeds that reach it would flatter a method that seldom does.
    """
    missed = set(results.loc[results[COSTS[0]].isna(), "method"])
    table = table.copy()
    table.loc[table.index.isin(missed), list(COSTS)] = math.nan
    return table


def notes_on_target(results: pd.DataFrame, labels: Iterable[Any], target: float) -> list[str]:
    """Say what the columns count, and which methods have no cost."""
    seeds = results.groupby("method")[COSTS[0]].agg(["count", "size"])
    short = seeds[seeds["count"] < seeds["size"]]
    sentences = [
        f"The target is a mean accuracy of {100 * target:g}% at the end of a round; costs are "
        "given only for runs that were evaluated after every round."
    ]
    if len(short):
        listed = "; ".join(
            f"{label} {short['count'][label]} of {short['size'][label]}"
            for label in labels
            if label in short.index
        )
        sentences.append(f"Seeds with a known cost of the target: {listed}.")
    return sentences
