"""Notes on differences between a comparison's runs: seeds, clients, settings, code, machines."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.groups import (
    Groups,
    by_strategy,
    client_accuracies,
    each_run,
    mean_steps,
    new_client_accuracies,
)
from fedkd_flwr.analysis.reference_runs import References
from fedkd_flwr.analysis.settings import defining_settings, plan_of, varied_settings
from fedkd_flwr.config import lost_keys
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.provenance import has_accepted_code, minor_version
from fedkd_flwr.runs.reading import legs_of

MANY_STEPS = 1.5
"""Times the gradient steps of its reference from which on a method trains notably longer."""


def notes_on_groups(groups: Groups, clients: pd.DataFrame, references: References) -> list[str]:
    """Return notes on differences between the compared runs.

    One sentence each on results on validation data, on seeds, on runs and clients without a
    reference, on longer training, and on settings.
    """
    return [
        *_notes_on_evaluated_split(groups),
        *_notes_on_seeds(groups),
        *notes_on_evaluations(groups),
        *_notes_on_reference(groups, clients, references),
        *_notes_on_steps(groups, references),
        *_notes_on_settings(groups),
        *_notes_on_removed_settings(groups),
    ]


def _notes_on_evaluated_split(groups: Groups) -> list[str]:
    if all(run.config.get("evaluated-split", "test") == "test" for _, run in each_run(groups)):
        return []
    return [
        "Results are those on validation data (evaluated-split), which may have chosen settings "
        "and rounds: they are for a choice, not for a claim."
    ]


def _notes_on_seeds(groups: Groups) -> list[str]:
    seeds = {label: [run.config["seed"] for run in runs] for label, runs in groups.items()}
    if len({tuple(found) for found in seeds.values()}) <= 1:
        return []
    listed = "; ".join(f"{label} {_listed(found)}" for label, found in seeds.items())
    return [f"The methods have different seeds, and each mean is over a method's own: {listed}."]


def notes_on_evaluations(groups: Groups) -> list[str]:
    """Name the runs of which a mean is over some clients, or of an earlier round than the last."""
    notes = []
    for label, run in each_run(groups):
        name = f"{label} seed {run.config['seed']}"
        summary = run.summary or {}
        rounds, last = summary["rounds"], summary["last_round"]
        if not last:
            notes.append(f"{name} was never evaluated.")
            continue
        if last["round"] < rounds:
            notes.append(
                f"{name} lacks the evaluation after its last round, {rounds}; its results "
                f"are those of round {last['round']:.0f}."
            )
        plan = plan_of(run.config)
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


def _notes_on_reference(groups: Groups, clients: pd.DataFrame, references: References) -> list[str]:
    name = references.against
    others = [(label, run) for label, run in each_run(groups) if label not in references]
    lacking = [
        (label, run)
        for label, run in others
        if references.name_of(label, run.config["seed"]) is None
    ]
    if lacking and len(lacking) == len(others):
        seeds = _listed(sorted({run.config["seed"] for _, run in others}))
        lack = (
            f"no run of {name} with a seed of the others"
            if references.labels
            else (f"no run of {name}")
        )
        return [f"There is {lack}, so there are no verdicts; run it with seed {seeds}."]
    without: dict[str, list[str]] = defaultdict(list)
    for label, run in lacking:
        setting = references.setting_for(label) or name
        without[setting].append(f"{label} seed {run.config['seed']}")
    notes = [
        *references.choices,
        *(
            f"Without a run of {setting} of the same seed: {_listed(found)}."
            for setting, found in without.items()
        ),
    ]
    for label, run in others:
        if label in references.refusals:
            continue
        own = clients[(clients["method"] == label) & (clients["seed"] == run.config["seed"])]
        matched = int(own["gain"].notna().sum())
        evaluated, trained = len(own), plan_of(run.config).num_training
        if (label, run) not in lacking and matched < evaluated:
            notes.append(
                f"{label} seed {run.config['seed']} is compared with {name} on {matched} of "
                f"{trained} clients."
            )
    return notes


def _notes_on_steps(groups: Groups, references: References) -> list[str]:
    """Name the methods whose clients train much longer than those of their reference."""
    longer = []
    for label, runs in groups.items():
        reference = references.setting_for(label)
        if reference is None:
            continue
        steps, least = mean_steps(runs), mean_steps(groups[reference])
        if runs[0].config.get("safeguard", "none") != "none":
            steps -= least  # those of the private model
        if steps >= MANY_STEPS * least > 0:
            longer.append(f"{label} {steps / least:.1f} times")
    if not longer:
        return []
    return [
        f"Clients take more gradient steps than under {references.against}: {_listed(longer)}. "
        f"A part of these gains may be longer training. A run of {references.against} with more "
        "local-iterations or local-epochs shows how much."
    ]


def _notes_on_settings(groups: Groups) -> list[str]:
    """Name the common settings that differ between methods which do not vary them themselves."""
    all_runs = [run for _, run in each_run(groups)]
    of_methods = by_strategy(all_runs)
    within = {strategy: varied_settings(runs) for strategy, runs in of_methods.items()}
    notes = []
    for name in varied_settings(all_runs):
        if "." in name:
            continue
        methods: dict[Any, list[str]] = defaultdict(list)
        for strategy, runs in of_methods.items():
            if name not in within[strategy]:  # else the labels have it already
                methods[defining_settings(runs[0].config).get(name)].append(strategy)
        if len(methods) > 1:
            listed = "; ".join(f"{value} ({_listed(found)})" for value, found in methods.items())
            notes.append(f"The methods do not share {name}: {listed}.")
    return notes


def _notes_on_removed_settings(groups: Groups) -> list[str]:
    """Name settings of older runs that this version does not have."""
    lost = {label: lost_keys(runs[0].config) for label, runs in groups.items()}
    return [
        f"{label} ran with {_listed(f'{key} = {value}' for key, value in keys.items())}, which "
        "this version does not have; it cannot be repeated or continued here."
        for label, keys in lost.items()
        if keys
    ]


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


UNKNOWN = "not recorded"
"""Stands for what a run of an older version did not record."""


def notes_on_provenance(runs: Sequence[Run]) -> list[str]:
    """Note how runs differ besides their settings, which alone can change numbers.

    Each process that wrote rounds of a run counts. At most three sentences: what differs, whether
    own code changed during a run, and whether the project's was modified after its commit.
    """
    makers = [_makers(run) for run in runs]
    made = [_made_by(maker) for own in makers for maker in own]
    values = {name: list(dict.fromkeys(one[name] for one in made)) for name in made[0]}
    differing = [f"{name} ({', '.join(found)})" for name, found in values.items() if len(found) > 1]
    notes = []
    if differing:
        notes.append(
            f"The runs differ in {'; '.join(differing)}. That alone can change numbers; rerun the "
            "older ones before you compare small gains."
        )
    accepted = sum(has_accepted_code(run.description) for run in runs)
    if accepted:
        notes.append(f"Runs whose own code changed with accept-changes: {accepted}.")
    modified = sum(
        any(maker.get("project", {}).get("modified", False) for maker in own) for own in makers
    )
    if modified:
        notes.append(f"Runs that code other than its recorded commit made: {modified}.")
    return notes


def _makers(run: Run) -> list[Mapping[str, Any]]:
    """Return what describes each process that wrote rounds of a run."""
    written = range((run.summary or {})["rounds"])
    return [leg for leg, rounds in legs_of(run.description) if written[rounds]]


def _made_by(description: Mapping[str, Any]) -> dict[str, str]:
    """Return what can change numbers, by the name to show."""
    project = description.get("project", {})
    versions = description.get("versions", {})
    return {
        "project version": project.get("version", UNKNOWN),
        "commit": project.get("commit", "")[:8] or UNKNOWN,
        "Python": minor_version(str(versions.get("python", UNKNOWN))),
        "torch": versions.get("torch", UNKNOWN),
        "numpy": versions.get("numpy", UNKNOWN),
        "processor": description.get("processor", UNKNOWN),
        "vector extensions": description.get("vector_extensions", UNKNOWN),
        "device": description.get("device", UNKNOWN),
        "threads": str(description.get("torch_threads", UNKNOWN)),
    }
