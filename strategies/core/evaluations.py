"""Evaluations of clients: what they report, the checks, and which of them are current.

They are rows of one table, see `Evaluations.rows`. The accuracies of clients and of rounds follow
from it: `with_evaluations` and `with_statistics` say how, to the server while a run goes on, and to
whoever reads the run.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message

from strategies.core.answers import ANSWERS, as_text, check_answers
from strategies.core.client_info import ClientInfo
from strategies.core.counts import (
    ACCURACIES,
    IN_TRAINING,
    Counts,
    EvaluatedModel,
    check_counts,
    counts_in,
    metric_name,
    metrics_of,
)
from strategies.core.exchange import Exchange
from strategies.core.metrics import FINE_TUNING_STEPS, fine_tuning_steps
from strategies.core.optional_metrics import (
    MEANS,
    check_class_counts,
    measured_metrics,
    totals_of_classes,
)
from strategies.core.plan import RunPlan
from strategies.core.replies import InvalidReplyError, Metric, Reply
from strategies.core.safeguard import (
    GUARDED,
    SAFEGUARD_METRICS,
    SAFEGUARD_WEIGHT,
    check_safeguarded,
)

Row = dict[str, Any]
"""A row of one of the run's tables."""

EVALUATIONS = "evaluations"
"""The table of evaluations: ``round, client, model, split, correct, total, loss``."""

OWN_TOTAL = metric_name("own", "test", "total")

MEAN_COLUMNS = (*MEANS, *ACCURACIES, SAFEGUARD_WEIGHT.replace("-", "_"))
"""Columns of a client whose means are in the row of a round, if reported."""


@dataclass(frozen=True)
class Evaluation:
    """What a client reports of an evaluation.

    Attributes
    ----------
    counts : list of Counts
        Its rows of the table of evaluations.
    columns : dict
        Columns of its row besides: measures, steps of fine-tuning, answers.
    """

    counts: list[Counts]
    columns: Row = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """All columns of the client that follow, with its accuracies."""
        return {**self.columns, **{k: v for one in self.counts for k, v in one.columns.items()}}


class Evaluations:
    """The current evaluation of every client.

    Parameters
    ----------
    plan : RunPlan
        The plan of the run.
    clients : mapping of int to ClientInfo
        All clients that have joined, by partition-id. It grows as they join.
    evaluates : iterable of str
        Models that the method evaluates besides a client's own.

    Attributes
    ----------
    metrics, train_metrics : tuple of Metric
        What the reply to an evaluation message may report, and that to a train message.
    """

    def __init__(
        self,
        plan: RunPlan,
        clients: Mapping[int, ClientInfo],
        evaluates: Iterable[EvaluatedModel] = (),
    ) -> None:
        self._plan = plan
        self._clients = clients
        self._current: dict[int, Evaluation] = {}
        self._in_training: list[Row] = []
        guarded = GUARDED if plan.safeguard.is_on else ()
        models: list[EvaluatedModel] = ["own", *evaluates, *guarded]
        self.metrics = (
            *metrics_of(model for model in models if model not in IN_TRAINING),
            FINE_TUNING_STEPS,
            *measured_metrics(plan.measures, plan.num_classes),
            *(SAFEGUARD_METRICS if guarded else ()),
        )
        moments = metrics_of(model for model in models if model in IN_TRAINING)
        self.train_metrics = (*self.metrics, *moments)

    def discard(self, partition_ids: Iterable[int]) -> None:
        """Discard the evaluations of clients whose models change."""
        for partition_id in partition_ids:
            self._current.pop(partition_id, None)

    def missing(self, partition_ids: Iterable[int]) -> list[int]:
        """Return the clients among some that have no current evaluation."""
        return [n for n in partition_ids if n not in self._current]

    def current(self, partition_ids: Iterable[int]) -> dict[int, Evaluation]:
        """Return the current evaluations of some clients; others are left out."""
        return {n: self._current[n] for n in partition_ids if n in self._current}

    def rows(self, server_round: int, evaluated: Mapping[int, Evaluation]) -> list[Row]:
        """Return a round's rows of the table: some evaluations, and counts of the training."""
        return [*rows_of(server_round, evaluated), *self._in_training]

    def add(self, evaluations: Mapping[int, Evaluation]) -> None:
        """Store evaluations by partition-id."""
        self._current |= evaluations

    def read(
        self, exchange: Exchange, replies: Iterable[Message], further: Sequence[Metric]
    ) -> dict[int, Evaluation]:
        """Read the valid replies to evaluation messages.

        Parameters
        ----------
        exchange : Exchange
            The exchange of the messages.
        replies : iterable of Message
            The replies in any order.
        further : sequence of Metric
            The metrics that the method allows besides counts.
        """
        check = partial(check_evaluation, self._clients, self._plan)
        valid = exchange.valid_replies(replies, lambda n: {}, (*further, *self.metrics), check)
        # A client may withhold its counts. It has then no accuracy.
        counted = {n: reply for n, reply in valid.items() if OWN_TOTAL in reply.metrics}
        return {n: read_evaluation(reply.metrics, reply.answers) for n, reply in counted.items()}

    def check_train_reply(self, reply: Reply) -> None:
        """Refuse counts and answers of a train reply that are impossible. They may be missing.

        Raises
        ------
        InvalidReplyError
            With the reason.
        """
        if reply.answers or any(metric.name in reply.metrics for metric in self.metrics):
            check_evaluation(self._clients, self._plan, reply)
        check_counts(reply.metrics, self._clients[reply.partition_id])

    def keep(self, server_round: int, replies: Mapping[int, Reply]) -> dict[int, dict[str, float]]:
        """Store the evaluations in train replies, and return the other metrics by partition-id."""
        of_evaluation = {metric.name for metric in self.metrics}
        of_any = {metric.name for metric in self.train_metrics}
        self._in_training = []
        for n, reply in replies.items():
            numbers = {k: v for k, v in reply.metrics.items() if k in of_evaluation}
            if OWN_TOTAL in numbers:
                self.add({n: read_evaluation(numbers, reply.answers)})
            for counts in counts_in(reply.metrics):
                if counts.model in IN_TRAINING:
                    # A distillation is the last step of the round before.
                    of_round = server_round - (counts.model == "distilled")
                    self._in_training.append(evaluation_row(of_round, n, counts))
        return {
            n: {k: v for k, v in reply.metrics.items() if k not in of_any}
            for n, reply in replies.items()
        }


def check_evaluation(clients: Mapping[int, ClientInfo], plan: RunPlan, reply: Reply) -> None:
    """Refuse impossible counts, and answers that contradict them or were not requested.

    Parameters
    ----------
    clients : mapping of int to ClientInfo
        All clients that have joined, by partition-id.
    plan : RunPlan
        The plan of the run.
    reply : Reply
        A reply with counts.

    Raises
    ------
    InvalidReplyError
        With the reason.
    """
    client = clients[reply.partition_id]
    check_counts(reply.metrics, client, due=["own"])
    check_class_counts(reply.metrics)
    check_safeguarded(reply.metrics)
    if not reply.answers:
        return
    if not plan.record_answers:
        raise InvalidReplyError("sends answers, which were not requested")
    correct = reply.metrics.get(metric_name("own", "test", "correct"))
    if correct is None:
        raise InvalidReplyError("sends answers without the counts that they belong to")
    check_answers(reply.answers, correct, client.test_size)


def read_evaluation(metrics: Mapping[str, float], answers: bytes = b"") -> Evaluation:
    """Return what a client reports: counts, and further columns of its row.

    Parameters
    ----------
    metrics : mapping of str to float
        The metrics of an evaluation.
    answers : bytes
        Which test images are right, see `strategies.core.answers`; empty if not known.

    Returns
    -------
    Evaluation
        Its columns are the metrics besides counts. With counts by class also ``held_accuracy`` on
        the client's training classes and ``other_accuracy`` on the other classes that it reports,
        if the test split has any. With answers these as text, ``answers``.
    """
    counts = counts_in(metrics)
    names = {metric.name for metric in metrics_of(found.model for found in counts)}
    row = {name.replace("-", "_"): value for name, value in metrics.items() if name not in names}
    if "held_total" in row:
        held_correct, held_total = row["held_correct"], row["held_total"]
        correct, total = totals_of_classes(metrics)
        others = correct - held_correct, total - held_total
        for name, (right, of) in {"held": (held_correct, held_total), "other": others}.items():
            if of:
                row[f"{name}_accuracy"] = right / of
    return Evaluation(counts, {**row, ANSWERS: as_text(answers)} if answers else row)


# ---- From the table to the rows of clients and rounds ------------------------------------


def rows_of(server_round: int, evaluations: Mapping[int, Evaluation]) -> list[Row]:
    """Return the rows of evaluations, by partition-id, in the table of evaluations."""
    return [
        evaluation_row(server_round, n, counts)
        for n, evaluation in evaluations.items()
        for counts in evaluation.counts
    ]


def evaluation_row(server_round: int, partition_id: int, counts: Counts) -> Row:
    """Return a row of the table of evaluations."""
    return {"round": server_round, "client": partition_id, **counts._asdict()}


def with_evaluations(clients: Iterable[Row], table: Iterable[Row]) -> list[Row]:
    """Return rows of clients with their accuracies, counts and losses.

    Parameters
    ----------
    clients : iterable of dict
        Rows with ``round`` and ``partition_id``.
    table : iterable of dict
        Rows of the table of evaluations, of any rounds and clients.
    """
    columns: dict[tuple[int, int], Row] = defaultdict(dict)
    for row in table:
        counts = Counts(**{name: row[name] for name in Counts._fields})
        columns[row["round"], row["client"]] |= counts.columns
    return [{**row, **columns[row["round"], row["partition_id"]]} for row in clients]


def with_statistics(row: Row, clients: Iterable[Row]) -> Row:
    """Return the row of a round with the statistics over its clients.

    Parameters
    ----------
    row : dict
        With ``round``, and ``sampled_from`` if the evaluated clients are sampled.
    clients : iterable of dict
        The rows of the round's clients, as `with_evaluations` returns them.
    """
    rows = list(clients)
    error = standard_error(rows, row.get("sampled_from", 0))
    return {"round": row["round"], **accuracy_statistics(rows), **error, **row}


def without_answers(clients: Iterable[Row]) -> list[Row]:
    """Return rows of clients without the answers to single images.

    Verdicts are about the last round and the best one. Answers of all rounds would only enlarge
    the run.
    """
    return [{name: v for name, v in row.items() if name != ANSWERS} for row in clients]


def accuracy_statistics(clients: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Summarize the clients' accuracies.

    Parameters
    ----------
    clients : iterable of mapping
        A row per client, as `with_evaluations` returns it.

    Returns
    -------
    dict of str to float or None
        Unweighted mean, standard deviation over clients (with N in the denominator), worst, best,
        mean weighted by test samples, mean loss and mean validation accuracy, each None without
        evaluations; the mean of each of `MEAN_COLUMNS` over the clients that have it; and
        ``fine_tuning_steps`` of all clients if there are any.
    """
    rows = list(clients)
    means: dict[str, float | None] = {
        f"{name}_mean": float(np.mean(values))
        for name in MEAN_COLUMNS
        if (values := [row[name] for row in rows if row.get(name) is not None])
    }
    evaluated = _evaluated(rows)
    if not evaluated:
        names = ("mean", "std", "min", "max", "weighted")
        nothing = {f"accuracy_{name}": None for name in names}
        return {**nothing, "loss_mean": None, "validation_accuracy_mean": None, **means}
    accuracies = np.array([row["accuracy"] for row in evaluated])
    totals = np.array([row["total"] for row in evaluated])
    losses = [row["loss"] for row in evaluated if row.get("loss") is not None]
    validation = [row["validation_accuracy"] for row in evaluated if "validation_accuracy" in row]
    return {
        "accuracy_mean": float(accuracies.mean()),
        "accuracy_std": float(accuracies.std()),
        "accuracy_min": float(accuracies.min()),
        "accuracy_max": float(accuracies.max()),
        "accuracy_weighted": float((accuracies * totals).sum() / totals.sum()),
        "loss_mean": float(np.mean(losses)) if len(losses) == len(evaluated) else None,
        "validation_accuracy_mean": float(np.mean(validation)) if validation else None,
        **means,
        **fine_tuning_steps(evaluated),
    }


def standard_error(clients: Iterable[Mapping[str, Any]], sampled_from: int) -> dict[str, float]:
    """Return the standard error of the mean accuracy of sampled clients.

    With n of N clients drawn without replacement and their standard deviation s (n - 1 in the
    denominator), it is ``s / sqrt(n) * sqrt(1 - n/N)``.

    Parameters
    ----------
    clients : iterable of mapping
        A row per client, as `with_evaluations` returns it; clients without accuracy are left out.
    sampled_from : int
        N; 0 if clients are not sampled.

    Returns
    -------
    dict of str to float
        ``accuracy_standard_error``; empty if clients are not sampled, or fewer than two are.
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
