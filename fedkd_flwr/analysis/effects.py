"""The effects of a comparison's methods: over the reference, over each other, on clients.

Those over each other are also shown as a matrix of text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from fedkd_flwr.analysis.columns import MISSING, points
from fedkd_flwr.analysis.harm import FALSE_DISCOVERIES, MATTERS, harm_of, precision_of
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
    turned = {(second, first): _turned(effects[first, second]) for first, second in effects}
    return {**effects, **turned}


def _turned(effect: Effect) -> Effect:
    """Return the effect of the second method over the first."""
    return replace(
        effect,
        above=effect.below,
        below=effect.above,
        gain=-effect.gain,
        low=-effect.high,
        high=-effect.low,
    )


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


def with_harm(table: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with what `fedkd_flwr.analysis.harm.harm_of` finds, if anything."""
    rows = {}
    for label in table.index:
        harm = harm_of(clients[clients["method"] == label])
        rows[label] = {
            "harmed_shown": harm.shown,
            "harmed_estimate": harm.estimate,
            "worst_loss_low": harm.low,
            "worst_loss_high": harm.high,
        }
    added = pd.DataFrame.from_dict(rows, orient="index")
    return table if added.isna().all(axis=None) else table.join(added)


def notes_on_harm(clients: pd.DataFrame) -> list[str]:
    """Say how precisely a client is measured, and how harm is distinguished from noise."""
    images, half_width = precision_of(clients)
    if np.isnan(images):
        return []
    notes = [
        f"A client's accuracy is measured to ±{100 * half_width:.1f} points (95% interval) at the "
        f"median test split of {images:,.0f} images."
    ]
    compared = clients.dropna(subset=["gain", "test_images"])
    if compared.empty:
        return notes
    paired = float(compared["lost"].notna().mean())
    return [*notes, _on_test(paired), _on_estimate(paired)]


def _on_test(paired: float) -> str:
    """Say what McNemar's test is taken on; `paired` is the share of clients with answers."""
    test = (
        f"Shown harmed: McNemar's exact test for each client, at most {FALSE_DISCOVERIES:.0%} "
        "false discoveries"
    )
    if paired == 1:
        return f"{test}, on the images that only one of the two models gets right."
    known = f" for {1 - paired:.0%} of the clients" if paired else ""
    return (
        f"{test}. Runs without record-answers hold how many answers are right, not which{known}: "
        "the test is then at the most disagreement that the counts allow, and finds too few "
        "rather than too many."
    )


def _on_estimate(paired: float) -> str:
    """Say what noise the estimate of harm removes; `paired` is the share with answers."""
    what = (
        f"Harmed, noise removed: estimated share of clients that truly lose {100 * MATTERS:g} "
        "point or more"
    )
    if paired == 1:
        return f"{what}. The noise is that of two models on the same images."
    return (
        f"{what}. Without recorded answers the noise is that of two independent models, more than "
        "there is in truth, so the true share may be larger, up to the share of clients below."
    )


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
