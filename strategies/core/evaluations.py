"""Evaluations of clients: what they report, the checks, and which of them are current.

A client is evaluated with the model that it has just trained, or with the one that the server sends
after a round. Where clients are sent a model, its accuracy is also counted at the other of these
moments: before local training, *received*, or after it, *trained*.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from flwr.app import Message

from strategies.core.answers import ANSWERS, as_text, check_answers
from strategies.core.client_info import ClientInfo
from strategies.core.exchange import Exchange
from strategies.core.metrics import FINE_TUNING_STEPS, fine_tuning_steps
from strategies.core.optional_metrics import (
    LARGEST_COUNT,
    MEANS,
    check_class_counts,
    measured_metrics,
    totals_of_classes,
)
from strategies.core.plan import RunPlan
from strategies.core.replies import InvalidReplyError, Metric, Reply
from strategies.core.safeguard import (
    SAFEGUARD_COLUMNS,
    SAFEGUARD_METRICS,
    check_safeguarded,
    safeguarded_accuracies,
)

Evaluation = dict[str, Any]
"""A client's row of results, computed by `read_evaluation`."""

EvaluationPoint = Literal["", "received", "trained"]
"""When a train message has the model counted a second time: before or after local training."""

COUNTS = (
    Metric("correct", averaged=False, low=0, high=LARGEST_COUNT),
    Metric("total", averaged=False, low=1, high=LARGEST_COUNT),
    Metric("loss", averaged=False),
    Metric("validation-correct", averaged=False, low=0, high=LARGEST_COUNT),
    Metric("validation-total", averaged=False, low=0, high=LARGEST_COUNT),
    Metric("validation-loss", averaged=False),
    FINE_TUNING_STEPS,
)
"""What an evaluation reports; a loss that is not finite is omitted."""


def counts_at(moment: EvaluationPoint) -> tuple[Metric, ...]:
    """Return what a train reply reports of a moment: correct predictions and samples."""
    names = ("correct", "total", "validation-correct", "validation-total") if moment else ()
    return tuple(
        Metric(f"{moment}-{name}", averaged=False, low=0, high=LARGEST_COUNT) for name in names
    )


def accuracies_of(moment: EvaluationPoint) -> tuple[Metric, ...]:
    """Return the metrics that `accuracies_at` computes for a moment."""
    names = ("accuracy", "validation-accuracy") if moment else ()
    return tuple(Metric(f"{moment}-{name}", low=0, high=1) for name in names)


def accuracies_at(moment: EvaluationPoint, metrics: Mapping[str, float]) -> dict[str, float]:
    """Compute accuracies at a moment from its counts, on the test and the validation split."""
    return {
        f"{moment}-{split}accuracy": metrics[f"{moment}-{split}correct"] / total
        for split in ("", "validation-")
        if (total := metrics.get(f"{moment}-{split}total"))
    }


class Evaluations:
    """The current evaluation of every client.

    Parameters
    ----------
    plan : RunPlan
        The plan of the run.
    clients : mapping of int to ClientInfo
        All clients that have joined, by partition-id. It grows as they join.
    second_evaluation : str
        The `EvaluationPoint` that train replies report besides.
    """

    def __init__(
        self, plan: RunPlan, clients: Mapping[int, ClientInfo], second_evaluation: EvaluationPoint
    ) -> None:
        self._plan = plan
        self._clients = clients
        self._second_evaluation = second_evaluation
        self._current: dict[int, Evaluation] = {}
        measured = measured_metrics(plan.measures, plan.num_classes)
        guarded = SAFEGUARD_METRICS if plan.safeguard.is_on else ()
        self.counts = (*COUNTS, *measured, *guarded)
        self.counts_of_training = (*self.counts, *counts_at(second_evaluation))

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
        metrics = (*further, *self.counts)
        valid = exchange.valid_replies(replies, lambda n: {}, metrics, check)
        # A client may withhold its counts. It has then no accuracy.
        counted = {n: reply for n, reply in valid.items() if "total" in reply.metrics}
        return {n: read_evaluation(reply.metrics, reply.answers) for n, reply in counted.items()}

    def check_train_reply(self, reply: Reply) -> None:
        """Refuse counts and answers of a train reply that are impossible. They may be missing.

        Raises
        ------
        InvalidReplyError
            With the reason.
        """
        if reply.answers or any(metric.name in reply.metrics for metric in self.counts):
            check_evaluation(self._clients, self._plan, reply)
        moment = self._second_evaluation
        if any(metric.name in reply.metrics for metric in counts_at(moment)):
            check_counts(reply.metrics, self._clients[reply.partition_id], f"{moment}-")

    def keep(self, replies: Mapping[int, Reply]) -> dict[int, dict[str, float]]:
        """Store the evaluations in train replies, and return the other metrics by partition-id.

        Counts of the second evaluation become accuracies.
        """
        evaluated = {metric.name for metric in self.counts}
        self.add(
            {
                n: read_evaluation(_only(evaluated, reply.metrics), reply.answers)
                for n, reply in replies.items()
                if "total" in reply.metrics
            }
        )
        counts = {metric.name for metric in self.counts_of_training}
        return {
            n: {
                **_only(reply.metrics.keys() - counts, reply.metrics),
                **accuracies_at(self._second_evaluation, reply.metrics),
            }
            for n, reply in replies.items()
        }


def _only(names: Iterable[str], metrics: Mapping[str, float]) -> dict[str, float]:
    kept = set(names)
    return {name: value for name, value in metrics.items() if name in kept}


def check_counts(metrics: Mapping[str, float], client: ClientInfo, moment: str = "") -> None:
    """Refuse impossible counts of correct predictions.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct`` and ``total``, and with a validation split ``validation-correct`` and
        ``validation-total``; counts by class if requested.
    client : ClientInfo
        Its test and validation sizes, as reported when it joined.
    moment : str
        Prefix of the counts.

    Raises
    ------
    InvalidReplyError
        If a count is missing or contradicts the others or the sizes.
    """
    for split, size in (("", client.test_size), ("validation-", client.validation_size)):
        prefix = f"{moment}{split}"
        total = metrics.get(f"{prefix}total", 0)
        correct = metrics.get(f"{prefix}correct", -1 if total else 0)
        if total != size or not correct <= total or correct < 0 or correct != int(correct):
            raise InvalidReplyError(
                f"reports {correct:g} {prefix}correct predictions out of {total:g} samples, "
                f"but has {size}"
            )
    check_class_counts(metrics)


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
    check_counts(reply.metrics, client)
    check_safeguarded(reply.metrics)
    if not reply.answers:
        return
    if not plan.record_answers:
        raise InvalidReplyError("sends answers, which were not requested")
    if "correct" not in reply.metrics:
        raise InvalidReplyError("sends answers without the counts that they belong to")
    check_answers(reply.answers, reply.metrics["correct"], client.test_size)


def read_evaluation(metrics: Mapping[str, float], answers: bytes = b"") -> Evaluation:
    """Compute a client's row from its counts: accuracy is correct / total over all samples.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct``, ``total``, ``loss``, and with a validation split the same with the prefix
        ``validation-``; other metrics are kept unchanged.
    answers : bytes
        Which test images are right, see `strategies.core.answers`; empty if not known.

    Returns
    -------
    dict
        ``accuracy``, ``correct``, ``total``, ``loss``, ``validation_accuracy``, …. With counts by
        class also ``held_accuracy`` on the client's training classes and ``other_accuracy`` on
        the other classes that it reports, if the test split has any. With a safeguard also
        ``safeguarded_accuracy`` and ``private_accuracy``. With answers these as text, ``answers``.
    """
    row: Evaluation = {name.replace("-", "_"): value for name, value in metrics.items()}
    row["accuracy"] = row["correct"] / row["total"]
    if row.get("validation_total"):
        row["validation_accuracy"] = row["validation_correct"] / row["validation_total"]
    row |= safeguarded_accuracies(metrics)
    if "held_total" in row:
        held_correct, held_total = row["held_correct"], row["held_total"]
        correct, total = totals_of_classes(metrics)
        others = correct - held_correct, total - held_total
        for name, (right, of) in {"held": (held_correct, held_total), "other": others}.items():
            if of:
                row[f"{name}_accuracy"] = right / of
    if answers:
        row[ANSWERS] = as_text(answers)
    return row


def without_answers(evaluations: Mapping[int, Evaluation]) -> dict[int, Evaluation]:
    """Return evaluations, by partition-id, without the answers to single images.

    Verdicts are about the last round and the best one. Answers of all rounds would only enlarge
    the run.
    """
    return {
        n: {name: value for name, value in row.items() if name != ANSWERS}
        for n, row in evaluations.items()
    }


def accuracy_statistics(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Summarize the clients' accuracies.

    Parameters
    ----------
    evaluations : iterable of mapping
        One row of `read_evaluation` per client.

    Returns
    -------
    dict of str to float or None
        Unweighted mean, standard deviation over clients (with N in the denominator), worst, best,
        mean weighted by test samples, mean loss and mean validation accuracy, each None without
        evaluations; the mean of each further measure over the clients that report it; and
        ``fine_tuning_steps`` of all clients if there are any.
    """
    rows = list(evaluations)
    names = ("mean", "std", "min", "max", "weighted")
    if not rows:
        nothing = {f"accuracy_{name}": None for name in names}
        return {**nothing, "loss_mean": None, "validation_accuracy_mean": None}
    accuracies = np.array([row["accuracy"] for row in rows])
    totals = np.array([row["total"] for row in rows])
    losses = np.array([row.get("loss", np.nan) for row in rows])
    validation = [row["validation_accuracy"] for row in rows if "validation_accuracy" in row]
    return {
        "accuracy_mean": float(accuracies.mean()),
        "accuracy_std": float(accuracies.std()),
        "accuracy_min": float(accuracies.min()),
        "accuracy_max": float(accuracies.max()),
        "accuracy_weighted": float((accuracies * totals).sum() / totals.sum()),
        "loss_mean": float(losses.mean()) if np.isfinite(losses).all() else None,
        "validation_accuracy_mean": float(np.mean(validation)) if validation else None,
        **{
            f"{name}_mean": float(np.mean(values))
            for name in (*MEANS, *SAFEGUARD_COLUMNS)
            if (values := [row[name] for row in rows if name in row])
        },
        **fine_tuning_steps(rows),
    }


def standard_error(
    evaluations: Collection[Mapping[str, Any]], sampled_from: int
) -> dict[str, float]:
    """Return the standard error of the mean accuracy of sampled clients.

    With n of N clients drawn without replacement and their standard deviation s (n - 1 in the
    denominator), it is ``s / sqrt(n) * sqrt(1 - n/N)``.

    Parameters
    ----------
    evaluations : collection of mapping
        One row of `read_evaluation` per sampled client.
    sampled_from : int
        N; 0 if clients are not sampled.

    Returns
    -------
    dict of str to float
        ``accuracy_standard_error``; empty if clients are not sampled, or fewer than two are.
    """
    size = len(evaluations)
    if not sampled_from or size < 2:
        return {}
    deviation = np.std([row["accuracy"] for row in evaluations], ddof=1)
    left_out = max(0.0, 1 - size / sampled_from)
    return {"accuracy_standard_error": float(deviation / np.sqrt(size) * np.sqrt(left_out))}
