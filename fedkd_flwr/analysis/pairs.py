"""Every method over each other one, as a matrix of text or as rows of numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from fedkd_flwr.analysis.columns import MISSING, points
from fedkd_flwr.analysis.significance import FEWEST_SEEDS, LEVEL, Effect, Outcome

FEWEST_METHODS = 3
"""Fewer have no pair besides that with the reference."""


def matrix_of_pairs(pairs: Mapping[tuple[str, str], Effect], labels: Sequence[str]) -> pd.DataFrame:
    """Return what the method of each row gains over that of each column.

    Parameters
    ----------
    pairs : mapping of (str, str) to Effect
        Of `fedkd_flwr.analysis.effects.effects_of_pairs`.
    labels : sequence of str
        The methods.

    Returns
    -------
    DataFrame
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
