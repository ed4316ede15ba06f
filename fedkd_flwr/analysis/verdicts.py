"""What a reader of a comparison has to know beside its numbers.

Verdicts say of each method whether it beats `local`; notes say what is uneven among the runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.references import REFERENCE, References
from fedkd_flwr.analysis.results import (
    client_accuracies,
    client_results,
    last_evaluations,
    new_client_accuracies,
)
from fedkd_flwr.analysis.settings import defining_settings, varied_settings
from fedkd_flwr.runs import Run
from strategies.core.plan import PlanSettings


def verdicts(clients: pd.DataFrame, labels: Iterable[Any]) -> list[str]:
    """Say of every method whether it beats `local`, by its clients' mean gain in each seed.

    Parameters
    ----------
    clients : DataFrame
        Of `fedkd_flwr.analysis.results.client_results`.
    labels : iterable of str
        The methods, in the order to speak of them.

    Returns
    -------
    list of str
        One sentence a method that has a run of `local` to be held against.
    """
    gains = clients.dropna(subset="gain")
    by_seed = gains.groupby(["method", "seed"])["gain"].mean() * 100
    names = gains.groupby("method")["reference"].unique()
    return [
        _verdict(str(label), by_seed[label], _named(names[label]))
        for label in labels
        if label in names
    ]


def _named(references: Sequence[str]) -> str:
    """Return how to speak of what a method's seeds are held against."""
    return references[0] if len(references) == 1 else REFERENCE


def verdicts_on_new_clients(groups: Mapping[str, list[Run]], labels: Iterable[Any]) -> list[str]:
    """Say the same of the clients that came after the training; nothing where none did.

    Parameters
    ----------
    groups : mapping of str to list of Run
        Finished runs by label.
    labels : iterable of str
        The methods, in the order to speak of them.
    """
    clients = client_results(groups, new_client_accuracies)
    return [f"New clients: {sentence}" for sentence in verdicts(clients, labels)]


def verdicts_against(results: pd.DataFrame, reference: str) -> list[str]:
    """Say of every method whether it beats another than `local`, by the runs of each seed.

    Parameters
    ----------
    results : DataFrame
        Of `fedkd_flwr.analysis.results.run_results`.
    reference : str
        Label of the other.

    Returns
    -------
    list of str
        One sentence a method that shares a seed with it, in the order of the results.
    """
    by_seed = results.pivot(index="seed", columns="method", values="accuracy") * 100
    gains = by_seed.sub(by_seed[reference], axis=0).drop(columns=reference)
    labels = [label for label in results["method"].unique() if label in gains]
    compared = {label: gains[label].dropna() for label in labels}
    return [_verdict(label, own, reference) for label, own in compared.items() if len(own)]


def _verdict(label: str, gains: pd.Series, reference: str) -> str:
    """Return one sentence about the mean gains of a method, in points, one a seed."""
    above, seeds = int((gains > 1e-9).sum()), len(gains)
    mean = round(gains.mean(), 1) + 0.0  # no minus before a zero
    if seeds == 1:
        place = "above" if above else "not above"
        return f"{label} is {place} {reference} on its one seed: {mean:+.1f} points."
    unsure = "does not reliably beat" if mean > 0 else "does not beat"
    beats = "beats" if above == seeds else unsure
    counted = f"above it in {above} of {seeds} seeds"
    return f"{label} {beats} {reference}: {mean:+.1f} points on average, {counted}."


def notes_on_groups(groups: Mapping[str, list[Run]], clients: pd.DataFrame) -> list[str]:
    """Say what is uneven among the runs that are compared.

    Parameters
    ----------
    groups : mapping of str to list of Run
        Finished runs by label.
    clients : DataFrame
        Their `fedkd_flwr.analysis.results.client_results`.

    Returns
    -------
    list of str
        One sentence each on seeds, on runs and clients without `local`, on settings, and on test
        splits that hold no other classes than their client trains on.
    """
    return [
        *_notes_on_seeds(groups),
        *_notes_on_evaluations(groups),
        *_notes_on_reference(groups, clients),
        *_notes_on_settings(groups),
        *_notes_on_classes(run for runs in groups.values() for run in runs),
    ]


def _notes_on_seeds(groups: Mapping[str, list[Run]]) -> list[str]:
    seeds = {label: [run.config["seed"] for run in runs] for label, runs in groups.items()}
    if len({tuple(found) for found in seeds.values()}) <= 1:
        return []
    listed = "; ".join(f"{label} {_listed(found)}" for label, found in seeds.items())
    return [f"The methods have different seeds, and means are over each one's: {listed}."]


def _notes_on_evaluations(groups: Mapping[str, list[Run]]) -> list[str]:
    """Name the runs of which a mean is over some clients, or of an earlier round than the last."""
    notes = []
    for label, run in ((label, run) for label, runs in groups.items() for run in runs):
        name = f"{label} seed {run.config['seed']}"
        summary = run.summary or {}
        rounds, last = summary["rounds"], summary["last_round"]
        if not last:
            notes.append(f"{name} was never evaluated.")
            continue
        if last["round"] < rounds:
            notes.append(
                f"{name} lacks the evaluation after its last round, {rounds}; what stands for it "
                f"is from round {last['round']:.0f}."
            )
        plan = _plan_of(run)
        for found, due, clients in (
            (len(client_accuracies(run)), plan.num_training, "clients"),
            (len(new_client_accuracies(run)), plan.num_new, "new clients"),
        ):
            if found < due:
                notes.append(
                    f"{name} has results of {found} of {due} {clients}: the others lack an "
                    "evaluation."
                )
    return notes


def _plan_of(run: Run) -> PlanSettings:
    number, new = run.config["num-clients"], run.config.get("new-clients", 0.0)
    return PlanSettings(num_clients=number, new_clients=new)


def _notes_on_reference(groups: Mapping[str, list[Run]], clients: pd.DataFrame) -> list[str]:
    others = [
        (label, run)
        for label, runs in groups.items()
        for run in runs
        if run.config["strategy"] != REFERENCE
    ]
    references = References(groups)
    lacking = [
        (label, run)
        for label, run in others
        if references.name_of(label, run.config["seed"]) is None
    ]
    if lacking and len(lacking) == len(others):
        return [f"There is no run of {REFERENCE} with these seeds to hold the clients against."]
    notes = []
    if lacking:
        listed = _listed(f"{label} seed {run.config['seed']}" for label, run in lacking)
        notes.append(f"Without a run of {REFERENCE} of the same seed: {listed}.")
    for label, run in others:
        own = clients[(clients["method"] == label) & (clients["seed"] == run.config["seed"])]
        matched = int(own["gain"].notna().sum())
        evaluated, trained = len(own), _plan_of(run).num_training
        if (label, run) not in lacking and matched < evaluated:
            notes.append(
                f"{label} seed {run.config['seed']} is held against {REFERENCE} on {matched} of "
                f"{trained} clients."
            )
    return notes


def _notes_on_settings(groups: Mapping[str, list[Run]]) -> list[str]:
    """Name the common settings that differ between methods but not within one."""
    by_strategy: dict[str, list[Run]] = defaultdict(list)
    for runs in groups.values():
        by_strategy[runs[0].config["strategy"]] += runs
    within = {name for runs in by_strategy.values() for name in varied_settings(runs)}
    notes = []
    for name in varied_settings(run for runs in groups.values() for run in runs):
        if "." in name or name in within:
            continue
        methods: dict[Any, list[str]] = defaultdict(list)
        for strategy, runs in by_strategy.items():
            methods[defining_settings(runs[0].config).get(name)].append(strategy)
        listed = "; ".join(f"{value} ({_listed(found)})" for value, found in methods.items())
        notes.append(f"The methods do not share {name}: {listed}.")
    return notes


def _notes_on_classes(runs: Iterable[Run]) -> list[str]:
    """Say where accuracy on classes that a client does not hold is nothing that could be asked."""
    evaluations = [last_evaluations(run) for run in runs]
    measured = [rows for rows in evaluations if "held_total" in rows]
    if not measured or any((rows["held_total"] < rows["total"]).any() for rows in measured):
        return []
    return [
        "Each client's test split holds only classes that it trains on: there is no accuracy on "
        "the others, and `fedkd cross` has models meet other clients' classes."
    ]


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
