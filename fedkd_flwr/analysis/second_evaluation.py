"""Moments of an evaluation: as received, or after local training.

A method is evaluated at one of them, and where clients are sent a model, at the other one as well.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from fedkd_flwr.analysis.groups import Groups
from fedkd_flwr.runs import Run
from fedkd_flwr.runs.summary import summarize
from strategies.core.answers import ANSWERS
from strategies.core.evaluations import accuracy_statistics
from strategies.core.metrics import FINE_TUNING_STEPS
from strategies.core.optional_metrics import MEANS
from strategies.core.rounds import NEW_CLIENTS
from strategies.core.safeguard import SAFEGUARD_COLUMNS

SECOND_EVALUATIONS = {"trained": "after local training", "received": "as received"}
"""Words for the second evaluation of a method, by the prefix of its columns."""

OF_THE_FIRST_MOMENT = ("loss", ANSWERS, FINE_TUNING_STEPS.column, *MEANS, *SAFEGUARD_COLUMNS)
"""Columns of a client that are not recorded at the second evaluation."""

COUNTS_OF_THE_FIRST_MOMENT = ("class_", "held_")
"""How the columns of a client with counts by class begin, which are not recorded there either."""


def at_best_evaluations(groups: Groups) -> dict[str, list[Run]]:
    """Return every group at the evaluation with the better validation accuracy after a run.

    A label names the second evaluation where that is better. A group keeps its first one if one of
    its clients lacks the second: with partial participation most of them do.
    """
    chosen = {}
    for label, runs in groups.items():
        moment = second_evaluation(runs)
        if moment and _validation(runs, f"{moment}_") > _validation(runs):
            chosen[f"{label}, {SECOND_EVALUATIONS[moment]}"] = [
                at_second_evaluation(run, moment) for run in runs
            ]
        else:
            chosen[label] = runs
    return chosen


def second_evaluation(runs: list[Run]) -> str:
    """Return the second evaluation that all evaluated clients of some runs have; empty for none."""
    last = pd.concat([run.last_evaluations for run in runs])
    return next(
        (
            moment
            for moment in SECOND_EVALUATIONS
            if (name := f"{moment}_validation_accuracy") in last and last[name].notna().all()
        ),
        "",
    )


def at_second_evaluation(run: Run, moment: str) -> Run:
    """Return a run whose accuracies are those of the second evaluation.

    What is recorded at the first evaluation alone is left out: new clients, for one.
    """
    other = replace(run)
    rows = [_at(moment, row) for row in run.client_rows]
    by_round: dict[int, list[Mapping[str, Any]]] = {row["round"]: [] for row in run.round_rows}
    for row in rows:
        if "accuracy" in row:
            by_round[row["round"]].append(row)
    # What a run reads from its files is cached; here it is computed.
    vars(other)["client_rows"] = rows
    vars(other)["further_rows"] = {
        name: table for name, table in run.further_rows.items() if name != NEW_CLIENTS
    }
    vars(other)["round_rows"] = [
        {**_without_fine_tuning(row), **accuracy_statistics(by_round[row["round"]])}
        for row in run.round_rows
    ]
    vars(other)["summary"] = summarize(other, (run.summary or {})["seconds"])
    return other


def _without_fine_tuning(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's row without the steps that only the models of the first evaluation took."""
    return {name: value for name, value in row.items() if name != FINE_TUNING_STEPS.column}


def _at(moment: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's row with the accuracies of a moment in place of its own."""
    first = ("accuracy", "validation_accuracy", "correct", *OF_THE_FIRST_MOMENT)
    other = {
        name: value
        for name, value in row.items()
        if name not in first and not name.startswith(COUNTS_OF_THE_FIRST_MOMENT)
    }
    accuracy = row.get(f"{moment}_accuracy")
    if accuracy is None or row.get("total") is None:
        return other
    other |= {"accuracy": accuracy, "correct": round(accuracy * row["total"])}
    if (validation := row.get(f"{moment}_validation_accuracy")) is not None:
        other["validation_accuracy"] = validation
    return other


def _validation(runs: list[Run], prefix: str = "") -> float:
    """Return the mean validation accuracy over runs and clients after the last round."""
    name = f"{prefix}validation_accuracy"
    return float(pd.Series([run.last_evaluations[name].mean() for run in runs]).mean())
