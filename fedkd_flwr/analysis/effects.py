"""The effects of a comparison's methods, over the reference and over each other.

Those over the reference are also verdicts in words, those over each other a matrix of text.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.columns import MISSING, points
from fedkd_flwr.analysis.groups import Groups, each_run, new_client_accuracies
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.analysis.results import client_results
from fedkd_flwr.analysis.significance import (
    FEWEST_SEEDS,
    LEVEL,
    POWER,
    Effect,
    Outcome,
    effects_of,
)
from strategies.core.rounds import NEW_CLIENTS


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


def verdicts(effects: Mapping[str, Effect], clients: pd.DataFrame, against: str) -> list[str]:
    """Describe the effect of each method in one sentence.

    `against` names the reference where a method's seeds are compared with several of its settings.
    """
    names = clients.dropna(subset="gain").groupby("method")["reference"].unique()
    return [
        verdict(label, effect, names[label][0] if len(names[label]) == 1 else against)
        for label, effect in effects.items()
    ]


def verdicts_on_new_clients(
    groups: Groups, labels: Iterable[Any], references: References
) -> list[str]:
    """Describe the effects on new clients; return nothing if there are none."""
    if not any(NEW_CLIENTS in run.further_rows for _, run in each_run(groups)):
        return []
    clients = client_results(groups, references, new_client_accuracies)
    effects = effects_on_clients(clients, labels)
    found = verdicts(effects, clients, references.against)
    return [f"New clients: {sentence}" for sentence in found]


def verdict(label: str, effect: Effect, reference: str) -> str:
    """Return what an effect shows, in words and points."""
    claim = {
        Outcome.BETTER: f"is better than {reference}",
        Outcome.WORSE: f"is worse than {reference}",
        Outcome.NOT_SHOWN: f"is not shown to differ from {reference}",
    }[effect.outcome]
    details = []
    if not math.isnan(effect.low):
        details.append(f"95% interval {points(effect.low)} to {points(effect.high)}")
    if not math.isnan(effect.p_holm):
        details.append("p < 0.001" if effect.p_holm < 0.001 else f"p = {effect.p_holm:.2g}")
    shown = f" ({', '.join(details)})" if details else ""
    sentences = [f"{label} {claim}: {points(effect.gain)} points{shown}", _counted(effect)]
    if effect.seeds < FEWEST_SEEDS:
        sentences.append(f"A verdict needs at least {FEWEST_SEEDS} seeds")
    elif effect.outcome is Outcome.NOT_SHOWN and effect.smallest_visible > 0:
        smallest = f"{100 * effect.smallest_visible:.1f}"
        sentences.append(f"The smallest gain that these runs could show is {smallest} points")
    return ". ".join(sentences) + "."


def _counted(effect: Effect) -> str:
    """Return in how many seeds a method is above its reference, or below it if in all."""
    is_below = effect.below == effect.seeds
    count = effect.below if is_below else effect.above
    chance = f" (by chance 1 in {2**count})" if count == effect.seeds else ""
    seeds = "seed" if effect.seeds == 1 else "seeds"
    return f"{'Below' if is_below else 'Above'} it in {count} of {effect.seeds} {seeds}{chance}"


def basis_of(effects: Mapping[str, Effect]) -> list[str]:
    """Describe how verdicts are reached, in two notes; empty if none is possible."""
    family = max((effect.family for effect in effects.values()), default=0)
    if not family:
        return []
    tests = f"Holm's correction over {family} methods" if family > 1 else "one method tested"
    return [
        f"Verdicts are paired t tests over seeds at level {LEVEL:.0%}, {tests}; intervals are "
        "Student's t over seeds.",
        f"The smallest gain is that found with {POWER:.0%} power at the "
        "first step of the correction, for the measured standard deviation of the differences.",
    ]


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
