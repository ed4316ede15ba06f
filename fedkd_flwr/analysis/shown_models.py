"""Which model of the clients a comparison shows: by default their own, or the best by validation.

A method leaves each client with a model of its own. Where clients are sent one that replaces it,
the table of evaluations has that model at another moment too.
"""

from collections import defaultdict
from dataclasses import replace

import pandas as pd

from fedkd_flwr.analysis.groups import Groups
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.summary import summarize
from strategies.core.evaluations import Row, accuracy_statistics, with_evaluations
from strategies.core.metrics import FINE_TUNING_STEPS
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
    table = [
        {**row, "model": "own"}
        for row in rows
        if row["model"] == model and (row["round"], row["client"]) in evaluated
    ]
    clients = [{k: v for k, v in row.items() if k in OF_EVERY_MODEL} for row in run.client_rows]
    by_round = defaultdict(list)
    for row in with_evaluations(clients, table):
        by_round[row["round"]].append(row)
    # What a run reads from its files is cached; here it is computed.
    vars(other).update(
        evaluation_rows=table,
        client_rows=[row for shown in by_round.values() for row in shown],
        further_rows={name: t for name, t in run.further_rows.items() if name != NEW_CLIENTS},
        round_rows=[
            {**_without_steps(row), **accuracy_statistics(by_round[row["round"]])}
            for row in run.round_rows
        ],
    )
    vars(other)["summary"] = summarize(other, (run.summary or {})["seconds"])
    return other


def _without_steps(row: Row) -> Row:
    """Return a round's row without the steps of fine-tuning, which only own models took."""
    return {name: value for name, value in row.items() if name != FINE_TUNING_STEPS.column}
