"""Evaluations of clients: what they report, the checks, and which of them are current.

They are rows of one table, from which the accuracies of clients and rounds follow.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from flwr.app import Message

from strategies.core.client_info import ClientInfo
from strategies.core.exchange import Exchange
from strategies.core.masks import ANSWERS, as_text, check_answers
from strategies.core.metrics import (
    FINE_TUNING_STEPS,
    IN_TRAINING,
    MODELS,
    SPLITS,
    Counts,
    EvaluatedModel,
    check_counts,
    column_prefix,
    counts_in,
    fine_tuning_steps,
    metric_name,
    metrics_of,
)
from strategies.core.optional_metrics import (
    MEANS,
    check_class_counts,
    measured_metrics,
    totals_of_classes,
)
from strategies.core.plan import PlanSettings, RunPlan
from strategies.core.replies import InvalidReplyError, Metric, Reply
from strategies.core.safeguard import GUARDED, SAFEGUARD_METRICS, check_safeguarded

Row = dict[str, Any]  # a row of one of the run's tables
EVALUATIONS = "evaluations"  # the table of evaluations

DISTILLATION = "distillation"
"""Phase of the message after the last round, for clients that learn at the start of a round."""

COLUMNS = ("round", "client", "model", "split", "correct", "total", "loss")  # its columns

OF_COUNTS = frozenset(metric.name for metric in metrics_of(MODELS))
"""The metrics of a message that hold counts."""

MEAN_COLUMNS = (
    *MEANS,
    *(f"{prefix}accuracy" for pair in product(MODELS, SPLITS) if (prefix := column_prefix(*pair))),
    "safeguard_weight",
)
"""Columns of a client whose means are in the row of a round, if reported."""


@dataclass(frozen=True)
class Evaluation:
    """What a client reports of an evaluation: counts, and further columns of its row."""

    counts: list[Counts]
    columns: Row

    @property
    def has_accuracy(self) -> bool:
        """Whether the client has told how many test samples its own model gets right."""
        return any((found.model, found.split) == ("own", "test") for found in self.counts)

    @property
    def row(self) -> Row:
        """All columns that follow."""
        return self.columns | {k: v for found in self.counts for k, v in found.columns.items()}


class Evaluations:
    """The current evaluation of every client; those of models that change are removed."""

    def __init__(
        self,
        plan: RunPlan,
        clients: Mapping[int, ClientInfo],
        evaluates: Collection[EvaluatedModel] = (),
    ) -> None:
        self._plan = plan
        self._clients = clients
        self.current: dict[int, Evaluation] = {}
        self._in_training: list[Row] = []
        self._has_distilled = "distilled" in evaluates
        self._distilled_in = 0
        self.asks_for_distilled = False
        self.metrics = evaluated_metrics(plan, plan.num_classes, evaluates)

    def look_back(self, row: Mapping[str, Any]) -> None:
        """Note of an earlier round whether it has models after distillation."""
        if row.get(f"{column_prefix('distilled', 'test')}accuracy_mean") is not None:
            self._distilled_in = row["round"]

    def begin(self, server_round: int, plan: RunPlan) -> None:
        """Choose what the training of a round reports."""
        before = server_round - 1
        is_due = before > self._distilled_in and plan.is_evaluated(before)
        self.asks_for_distilled = self._has_distilled and is_due

    def rows(self, server_round: int, evaluated: Mapping[int, Evaluation]) -> list[Row]:
        """Return a round's rows of the table: some evaluations, and counts of the training."""
        of_clients = [(n, counts) for n, found in evaluated.items() for counts in found.counts]
        return [*(evaluation_row(server_round, *one) for one in of_clients), *self._in_training]

    def read(
        self, exchange: Exchange, replies: Iterable[Message], further: Sequence[Metric]
    ) -> dict[int, Evaluation]:
        """Read the valid replies to evaluation messages; `further` are metrics of the method."""
        check = partial(self.check, due=("own",))
        valid = exchange.valid_replies(replies, lambda n: {}, (*further, *self.metrics), check)
        found = {n: read_evaluation(reply.metrics, reply.answers) for n, reply in valid.items()}
        # A client may withhold its counts. It has then no accuracy.
        return {n: evaluation for n, evaluation in found.items() if evaluation.has_accuracy}

    def check(self, reply: Reply, due: Iterable[EvaluatedModel] = ()) -> None:
        """Refuse impossible counts of a reply, and answers that contradict them or are unrequested.

        Counts of a model may be missing unless it is `due`.
        """
        client, metrics = self._clients[reply.partition_id], reply.metrics
        check_counts(metrics, client, due)
        check_class_counts(metrics)
        check_safeguarded(metrics)
        if not reply.answers:
            return
        if not self._plan.record_answers:
            raise InvalidReplyError("sends answers, which were not requested")
        if (right := metric_name("own", "test", "correct")) not in metrics:
            raise InvalidReplyError("sends answers without the counts that they belong to")
        check_answers(reply.answers, metrics[right], client.test_size)

    def keep(self, server_round: int, replies: Mapping[int, Reply]) -> dict[int, dict[str, float]]:
        """Store the evaluations in train replies, and return the other metrics by partition-id."""
        names = {metric.name for metric in self.metrics}
        self._in_training, others = [], {}
        for n, reply in replies.items():
            others[n] = {k: v for k, v in reply.metrics.items() if k not in names}
            reported = {k: v for k, v in reply.metrics.items() if k in names}
            found = read_evaluation(reported, reply.answers)
            if found.has_accuracy:
                self.current[n] = found
            for counts in counts_in(reported):
                is_distilled = counts.model == "distilled"
                # A distillation is the last step of the round before.
                row = evaluation_row(server_round - is_distilled, n, counts)
                if counts.model in IN_TRAINING and (self.asks_for_distilled or not is_distilled):
                    self._in_training.append(row)
        return others


def evaluated_metrics(
    plan: PlanSettings, classes: int, evaluates: Iterable[EvaluatedModel] = ()
) -> tuple[Metric, ...]:
    """Return what clients may report of models that they evaluate: their own and others."""
    is_guarded = plan.safeguard.is_on
    return (
        *metrics_of(("own", *evaluates, *(GUARDED if is_guarded else ()))),
        *measured_metrics(plan.measures, classes),
        *(SAFEGUARD_METRICS if is_guarded else ()),
        FINE_TUNING_STEPS,
    )


def read_evaluation(metrics: Mapping[str, float], answers: bytes = b"") -> Evaluation:
    """Return what a client reports of models that it keeps.

    Columns are the metrics besides counts, and the answers as text. Counts by class add the
    accuracies on the training classes (``held``) and on the other classes, if the test split has
    any.
    """
    row = {k.replace("-", "_"): value for k, value in metrics.items() if k not in OF_COUNTS}
    if "held_total" in row:
        held_correct, held_total = row["held_correct"], row["held_total"]
        correct, total = totals_of_classes(metrics)
        others = correct - held_correct, total - held_total
        for name, (right, of) in {"held": (held_correct, held_total), "other": others}.items():
            if of:
                row[f"{name}_accuracy"] = right / of
    counts = [counts for counts in counts_in(metrics) if counts.model not in IN_TRAINING]
    return Evaluation(counts, {**row, ANSWERS: as_text(answers)} if answers else row)


# ---- From the table to the rows of clients and rounds ------------------------------------


def evaluation_row(server_round: int, partition_id: int, counts: Counts) -> Row:
    """Return a row of the table of evaluations."""
    return {"round": server_round, "client": partition_id, **vars(counts)}


def with_evaluations(clients: Iterable[Row], table: Iterable[Row]) -> list[Row]:
    """Return rows of clients with what follows from the table: accuracies, counts and losses."""
    columns: dict[tuple[int, int], Row] = defaultdict(dict)
    for row in table:
        counts = Counts(*(row[name] for name in COLUMNS[2:]))
        columns[row["round"], row["client"]] |= counts.columns
    # Versions before 0.2 wrote accuracies into each row.
    return [{**columns[row["round"], row["partition_id"]], **row} for row in clients]


def with_statistics(row: Row, clients: Iterable[Row]) -> Row:
    """Return the row of a round with statistics over its clients, of `with_evaluations`."""
    rows = list(clients)
    error = standard_error(rows, row.get("sampled_from", 0))
    return {"round": row["round"], **accuracy_statistics(rows), **error, **row}


def without_answers(clients: Iterable[Row]) -> list[Row]:
    """Return rows of clients without the answers to single images, which enlarge a run."""
    return [{name: v for name, v in row.items() if name != ANSWERS} for row in clients]


def accuracy_statistics(clients: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return unweighted statistics of accuracies, None without any, and column means."""
    rows = list(clients)
    further = {
        f"{name}_mean": float(np.mean(values))
        for name in MEAN_COLUMNS
        if (values := [row[name] for row in rows if row.get(name) is not None])
    }
    names = ("accuracy_mean", "accuracy_std", "accuracy_min", "accuracy_max", "accuracy_weighted")
    missing = dict.fromkeys((*names, "loss_mean", "validation_accuracy_mean"))
    means: dict[str, float | None] = {**missing, **further}
    evaluated = _evaluated(rows)
    if not evaluated:
        return means
    accuracies = np.array([row["accuracy"] for row in evaluated])
    totals = np.array([row["total"] for row in evaluated])
    losses = [row["loss"] for row in evaluated if row.get("loss") is not None]
    return {
        **means,
        "accuracy_mean": float(accuracies.mean()),
        "accuracy_std": float(accuracies.std()),
        "accuracy_min": float(accuracies.min()),
        "accuracy_max": float(accuracies.max()),
        "accuracy_weighted": float((accuracies * totals).sum() / totals.sum()),
        "loss_mean": float(np.mean(losses)) if len(losses) == len(evaluated) else None,
        **fine_tuning_steps(evaluated),
    }


def standard_error(clients: Iterable[Mapping[str, Any]], sampled_from: int) -> dict[str, float]:
    """Return the standard error of the mean accuracy of n clients that are sampled from N.

    It is ``s / sqrt(n) * sqrt(1 - n/N)`` with their standard deviation s (n - 1 in the
    denominator). Empty for N = 0, and for n below two.
    """
    accuracies = [row["accuracy"] for row in _evaluated(clients)]
    size = len(accuracies)
    if not sampled_from or size < 2:
        return {}
    left_out = max(0.0, 1 - size / sampled_from)
    deviation = np.std(accuracies, ddof=1)
    return {"accuracy_standard_error": float(deviation / np.sqrt(size) * np.sqrt(left_out))}


def _evaluated(clients: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in clients if row.get("accuracy") is not None]
