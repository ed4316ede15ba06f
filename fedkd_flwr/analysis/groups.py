"""Groups of a comparison: runs of one method with the same settings, which differ in seed.

Also what the clients of a run reach at its last evaluation, and with which of their models: a
method leaves each client with one of its own, and may send one that replaces it.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from fedkd_flwr.analysis.columns import MISSING, percent
from fedkd_flwr.analysis.settings import defining_settings, plan_of, varied_settings
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.provenance import short_digest, versions_of_code
from fedkd_flwr.runs.summary import summarize
from strategies.core.evaluations import EVALUATIONS, Row, accuracy_statistics
from strategies.core.rounds import NEW_CLIENTS

Groups = Mapping[str, list[Run]]
"""Finished runs by label: the method, and those of its settings that vary between its runs."""


def each_run(groups: Groups) -> Iterator[tuple[str, Run]]:
    """Yield each run with the label of its group."""
    for label, runs in groups.items():
        for run in runs:
            yield label, run


def grouped(runs: Iterable[Run], by_code: bool = False) -> tuple[dict[str, list[Run]], list[str]]:
    """Return the runs by label, one per seed in ascending order, and notes on runs left out.

    Runs of two versions of own code never share a label. With `by_code` each version has its own,
    else the version of the latest run counts.
    """
    groups: dict[str, dict[int, Run]] = defaultdict(dict)
    notes = []
    for strategy, members in by_strategy(runs).items():
        varied = varied_settings(members)
        alike: dict[tuple[str, ...], list[Run]] = defaultdict(list)
        for run in sorted(members, key=lambda run: run.description.get("started") or ""):
            settings = defining_settings(run.config)
            parts = (f"{name.rpartition('.')[2]}={settings.get(name, MISSING)}" for name in varied)
            alike[tuple(parts)].append(run)
        for named, same in alike.items():
            *earlier, latest = versions = versions_of_code(same)
            if earlier and not by_code:
                notes.append(_note_on_versions(_label(strategy, named), earlier, latest))
                versions = [latest]
            for version in versions:
                code = (f"code={short_digest(version[-1])}",) if len(versions) > 1 else ()
                own = groups[_label(strategy, (*named, *code))]
                # Of runs with equal settings and seed, the latest one counts.
                for run in version:
                    if before := own.get(run.config["seed"]):
                        notes.append(_note_on_repeated(before, run))
                    own[run.config["seed"]] = run
    return {label: [runs[seed] for seed in sorted(runs)] for label, runs in groups.items()}, notes


def _label(strategy: str, named: Sequence[str]) -> str:
    return f"{strategy} ({', '.join(named)})" if named else strategy


def _note_on_repeated(before: Run, run: Run) -> str:
    earlier, later = (
        f"{found.path.name} ({percent(client_accuracies(found).mean())})" for found in (before, run)
    )
    return (
        f"{earlier} is left out: {later} is a later run with the same settings and seed. Remove "
        "the one that is not to count."
    )


def _note_on_versions(label: str, earlier: list[list[Run]], latest: list[Run]) -> str:
    names = ", ".join(run.path.name for version in earlier for run in version)
    return (
        f"{label}: {names} left out, made with other own code than {latest[-1].path.name}. Rerun "
        "them, or show each version with --by-code (in Python by_code=True)."
    )


def by_strategy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return the runs of each method."""
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.config["strategy"]].append(run)
    return found


def labels_by_method(groups: Groups) -> dict[str, list[str]]:
    """Return the labels of each method's settings."""
    labels: dict[str, list[str]] = defaultdict(list)
    for label, runs in groups.items():
        labels[runs[0].config["strategy"]].append(label)
    return labels


def client_accuracies(run: Run) -> pd.Series:
    """Return the clients' accuracies at the last evaluated round, by partition-id."""
    accuracies: pd.Series = run.last_evaluations["accuracy"]
    return accuracies


def new_client_accuracies(run: Run) -> pd.Series:
    """Return the accuracies of new clients, by partition-id."""
    rounds = (run.summary or {}).get("rounds")
    rows = [row for row in run.further_rows.get(NEW_CLIENTS, []) if row["round"] == rounds]
    accuracies = {row["partition_id"]: row["accuracy"] for row in rows if "accuracy" in row}
    return pd.Series(accuracies, dtype=float).sort_index()


def steps_of_a_client(run: Run) -> float:
    """Return the steps of the whole run divided by its clients in training."""
    steps: int | None = (run.summary or {}).get("gradient_steps")
    return math.nan if steps is None else steps / plan_of(run.config).num_training


def mean_steps(runs: Iterable[Run]) -> float:
    """Return the gradient steps of a client, mean over runs; NaN where a run did not count them."""
    return float(np.mean([steps_of_a_client(run) for run in runs]))


def client_test_images(run: Run) -> pd.Series:
    """Return the sizes of the clients' test splits, by partition-id; empty where not recorded."""
    rows = run.last_evaluations
    images: pd.Series = rows["total"] if "total" in rows else pd.Series(dtype=float)
    return images


SHOWN = {
    "own": "",
    "trained": ", after local training",
    "received": ", as received",
    "distilled": ", after distillation",
}
"""Models that a comparison can show, and what a label then says."""

OF_EVERY_MODEL = ("round", "partition_id", "name", "model", "num_examples", "failure")
"""Columns of a client that are not about one of its models."""


def at_best_models(groups: Groups) -> dict[str, list[Run]]:
    """Return every group with the model of the best validation accuracy after a run.

    Its label names a model that is not the clients' own. Models that an evaluated client lacks are
    left out: with partial participation most of them do.
    """
    chosen = {}
    for label, runs in groups.items():
        accuracies = pd.DataFrame([validation_accuracies(run) for run in runs], columns=[*SHOWN])
        means = accuracies.mean(skipna=False)
        best = "own" if means.isna().all() else str(means.idxmax())
        chosen[label + SHOWN[best]] = (
            runs if best == "own" else [showing(run, best) for run in runs]
        )
    return chosen


def validation_accuracies(run: Run) -> pd.Series:
    """Return the mean validation accuracy of each model at the last evaluation.

    NaN for a model that an evaluated client lacks.
    """
    last, rows = run.last_evaluations, run.evaluations
    rows = rows[(rows["split"] == "validation") & (rows["round"] == last["round"].max())]
    rows = rows.assign(accuracy=rows["correct"] / rows["total"])
    by_client = rows.pivot(index="client", columns="model", values="accuracy")
    means: pd.Series = by_client.reindex(last.index).mean(skipna=False)
    return means


def showing(run: Run, model: str) -> Run:
    """Return a run whose accuracies are those of another model than the clients' own.

    What is recorded of their own model alone is left out.
    """
    other, rows = replace(run), run.evaluation_rows
    evaluated = {(row["round"], row["client"]) for row in rows if row["model"] == "own"}
    known = [row for row in rows if (row["round"], row["client"]) in evaluated]
    about_accuracy = accuracy_statistics(run.client_rows).keys()
    further = {name: table for name, table in run.further_rows.items() if name != NEW_CLIENTS}
    if joined := [_as_own(row, model) for row in run.further_rows.get(NEW_CLIENTS, [])]:
        further[NEW_CLIENTS] = joined
    # What a run reads from its files is cached.
    stored = {
        EVALUATIONS: [{**row, "model": "own"} for row in known if row["model"] == model],
        "clients": [_only(row, OF_EVERY_MODEL) for row in run.client_rows],
        "rounds": [_only(row, row.keys() - about_accuracy) for row in run.stored("rounds")],
    }
    vars(other).update(_stored=stored, further_rows=further)
    vars(other)["summary"] = summarize(other, (run.summary or {})["seconds"])
    return other


def _as_own(row: Row, model: str) -> Row:
    """Return the row of a new client with the columns of another model as those of its own."""
    prefix = f"{model}_"
    of_model = {name.removeprefix(prefix): v for name, v in row.items() if name.startswith(prefix)}
    return {**_only(row, OF_EVERY_MODEL), **of_model}


def _only(row: Row, names: Collection[str]) -> Row:
    return {name: value for name, value in row.items() if name in names}
