"""Verdicts of a comparison in words: better, worse, or not shown to differ."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.columns import points
from fedkd_flwr.analysis.effects import effects_on_clients
from fedkd_flwr.analysis.groups import Groups, each_run, new_client_accuracies
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.analysis.results import client_results
from fedkd_flwr.analysis.significance import (
    FEWEST_SEEDS,
    LEVEL,
    POWER,
    Effect,
    Outcome,
)
from strategies.core.rounds import NEW_CLIENTS


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
