"""Which model of the clients a comparison shows: by default their own, or the best by validation.

A method leaves each client with a model of its own. Where clients are sent one that replaces it,
the table of evaluations has that model at another moment too.
"""

from collections.abc import Collection
from dataclasses import replace

import pandas as pd

from fedkd_flwr.analysis.groups import Groups
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.summary import summarize
from strategies.core.evaluations import EVALUATIONS, Row, accuracy_statistics
from strategies.core.rounds import NEW_CLIENTS

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

    What is recorded of their own model alone is left out: new clients, for one.
    """
    other, rows = replace(run), run.evaluation_rows
    evaluated = {(row["round"], row["client"]) for row in rows if row["model"] == "own"}
    known = [row for row in rows if (row["round"], row["client"]) in evaluated]
    about_accuracy = accuracy_statistics(run.client_rows).keys()
    further = {name: table for name, table in run.further_rows.items() if name != NEW_CLIENTS}
    # What a run reads from its files is cached.
    stored = {
        EVALUATIONS: [{**row, "model": "own"} for row in known if row["model"] == model],
        "clients": [_only(row, OF_EVERY_MODEL) for row in run.client_rows],
        "rounds": [_only(row, row.keys() - about_accuracy) for row in run.stored("rounds")],
    }
    vars(other).update(_stored=stored, further_rows=further)
    vars(other)["summary"] = summarize(other, (run.summary or {})["seconds"])
    return other


def _only(row: Row, names: Collection[str]) -> Row:
    return {name: value for name, value in row.items() if name in names}
