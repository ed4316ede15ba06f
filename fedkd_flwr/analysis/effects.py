"""The effects of a comparison's methods: over the reference, and over each other.

Those over each other are also shown as a matrix of text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.columns import MISSING, points
from fedkd_flwr.analysis.significance import FEWEST_SEEDS, LEVEL, Effect, Outcome, effects_of


def effects_on_clients(clients: pd.DataFrame, labels: Iterable[Any]) -> dict[str, Effect]:
    """Return what each method's mean gain over its reference shows.

    Of each method that shares a seed with the reference; Holm's correction is over these.
    """
    gains = clients.dropna(subset="gain").groupby(["method", "seed"])["gain"].mean()
    compared = set(gains.index.get_level_values("method"))
    return effects_of({str(label): gains[label] for label in labels if label in compared})


def effects_of_pairs(
    clients: pd.DataFrame, labels: Sequence[str], comparable: Callable[[str, str], bool]
) -> dict[tuple[str, str], Effect]:
    """Return the effect of each method over each other one, by their pair of labels.

    In both directions; Holm's correction is over all pairs, each counted once. Pairs without a
    common seed, and those that are not comparable, are missing.
    """
    accuracies = clients.pivot(
        index=["seed", "partition_id"], columns="method", values="accuracy"
    ).reindex(columns=list(labels))
    gains = {}
    for first, second in combinations(labels, 2):
        gain = (accuracies[first] - accuracies[second]).dropna().groupby("seed").mean()
        if len(gain) and comparable(first, second):
            gains[first, second] = gain
    effects = effects_of(gains)
    turned = {
        (second, first): replace(
            effect,
            above=effect.below,
            below=effect.above,
            gain=-effect.gain,
            low=-effect.high,
            high=-effect.low,
        )
        for (first, second), effect in effects.items()
    }
    return {**effects, **turned}


def with_effects(table: pd.DataFrame, effects: dict[str, Effect]) -> pd.DataFrame:
    """Return a table of means with what each method's gain shows, after its accuracy.

    With ``gain``, ``gain_low``, ``gain_high``, ``p_value``, ``p_holm`` and ``smallest_visible``,
    parts of 1, NaN where there is nothing to compare with or too few seeds, and ``verdict``, an
    `Outcome`.
    """
    rows = {
        label: {
            "gain": effect.gain,
            "gain_low": effect.low,
            "gain_high": effect.high,
            "p_value": effect.p_value,
            "p_holm": effect.p_holm,
            "smallest_visible": effect.smallest_visible,
            "verdict": str(effect.outcome),
        }
        for label, effect in effects.items()
    }
    return table.join(pd.DataFrame.from_dict(rows, orient="index"))


FEWEST_METHODS = 3
"""Fewer have no pair besides that with the reference."""


def matrix_of_pairs(pairs: Mapping[tuple[str, str], Effect], labels: Sequence[str]) -> pd.DataFrame:
    """Return what the method of each row gains over that of each column.

    A first column ``method``, then one column per method. Cells hold points, and *better* or
    *worse* where that is shown; empty if there are fewer than `FEWEST_METHODS`.
    """
    if len(labels) < FEWEST_METHODS:
        return pd.DataFrame()
    rows = [[row, *(_cell(pairs.get((row, column))) for column in labels)] for row in labels]
    return pd.DataFrame(rows, columns=["method", *labels])


def rows_of_pairs(pairs: Mapping[tuple[str, str], Effect]) -> pd.DataFrame:
    """Return a row of numbers for each pair: ``method``, ``over``, the effect and its ``verdict``.

    Gains and their intervals are parts of 1.
    """
    return pd.DataFrame(
        {"method": method, "over": other, **asdict(effect), "verdict": str(effect.outcome)}
        for (method, other), effect in pairs.items()
    )


def notes_on_pairs(pairs: Mapping[tuple[str, str], Effect]) -> list[str]:
    """Say what the cells hold, and over how many pairs verdicts are corrected."""
    family = max((effect.family for effect in pairs.values()), default=0)
    notes = ["Cells are mean gains in points of the method of the row over that of the column."]
    if not family:
        return [*notes, f"A verdict needs at least {FEWEST_SEEDS} common seeds."]
    return [
        *notes,
        f"Better and worse are shown by paired t tests over seeds at level {LEVEL:.0%}, with "
        f"Holm's correction over {family} pairs: fewer are shown than against one reference.",
    ]


def _cell(effect: Effect | None) -> str:
    if effect is None:
        return MISSING
    if effect.outcome is Outcome.NOT_SHOWN:
        return points(effect.gain)
    return f"{points(effect.gain)} {effect.outcome}"
