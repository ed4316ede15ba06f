"""Records of a round, and observers of a run: who is told of them while it is running."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.answers import ANSWERS, as_text, check_answers
from strategies.core.flower import log
from strategies.core.measures import LARGEST_COUNT, MEANS, check_class_counts, measured_metrics
from strategies.core.membership import ClientInfo
from strategies.core.metrics import FINE_TUNING_STEPS, fine_tuning_steps
from strategies.core.plan import RunPlan
from strategies.core.replies import Arrays, InvalidReplyError, Metric, Reply

Evaluation = dict[str, Any]
"""A client's row of results, computed by `read_evaluation`."""

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


def counts_due(plan: RunPlan) -> tuple[Metric, ...]:
    """Return what an evaluation may report in a run: `COUNTS` and the requested measures."""
    return (*COUNTS, *measured_metrics(plan.measures, plan.num_classes))


@dataclass
class RoundRecord:
    """The results of one round.

    Attributes
    ----------
    server_round : int
        The round, counted from 1 over the whole run.
    row : dict
        The row of the table of rounds.
    clients : list of dict
        One row per client that was evaluated, sampled or failed in this round.
    matrices : dict of str to ndarray
        The method's matrices after the round, such as ``coefficients`` (N, N).
    tables : dict of str to list of dict
        Rows of further tables of the method, each with ``round`` and ``partition_id``.
    state : mapping of str to ndarray
        The server's state, from which the run can be resumed.
    global_model : mapping of str to ndarray
        The global model, if the method wants that of each round to be saved.
    """

    server_round: int
    row: dict[str, Any]
    clients: list[dict[str, Any]] = field(default_factory=list)
    matrices: dict[str, NDArray[Any]] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)
    global_model: Arrays = field(default_factory=dict)


class Observer:
    """Is told of the events of a run; subclasses override the methods that they need.

    The run directory, trackers and the progress bar are observers. The run directory writes an
    event down before it tells the others.

    Attributes
    ----------
    reads_log : bool
        Whether the lines of Flower's log go to `line_logged` and not to the terminal.
    """

    reads_log = False

    def run_started(self, run: Any) -> None:
        """Handle the start or the continuation of a run, a `fedkd_flwr.runs.Run`."""

    def about_to_ask(self, state: Arrays) -> None:
        """Save a part of the state that must survive an interrupted round."""

    def clients_answered(self, message_type: str, done: int, total: int) -> None:
        """Handle that some of the clients that were asked have replied."""

    def line_logged(self, line: str) -> None:
        """Handle a line of Flower's log."""

    def round_finished(self, record: RoundRecord) -> None:
        """Handle a completed round; outside of the server's process its row alone is known."""

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Handle the end of the run, with the content of ``summary.json``."""

    def run_stopped(self) -> None:
        """Handle an early stop; another process may continue the run."""

    def global_model(self, server_round: int) -> Arrays:
        """Return the saved global model of a round; empty where none is saved."""
        return {}


OnRound = Callable[[Mapping[str, Any]], None]
"""Is called with the row of each completed round."""


class RowObserver(Observer):
    """Passes the row of each completed round to a function."""

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round

    def round_finished(self, record: RoundRecord) -> None:
        """Pass the row to the function."""
        self._on_round(record.row)


def check_counts(metrics: Mapping[str, float], client: ClientInfo) -> None:
    """Refuse impossible counts of correct predictions.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct`` and ``total``, and with a validation split ``validation-correct`` and
        ``validation-total``; counts by class if requested.
    client : ClientInfo
        Its test and validation sizes, as reported when it joined.

    Raises
    ------
    InvalidReplyError
        If a count is missing or contradicts the others or the sizes.
    """
    for prefix, size in (("", client.test_size), ("validation-", client.validation_size)):
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
        the other classes, if the test split has any. With answers these as text, ``answers``.
    """
    row: Evaluation = {name.replace("-", "_"): value for name, value in metrics.items()}
    row["accuracy"] = row["correct"] / row["total"]
    if row.get("validation_total"):
        row["validation_accuracy"] = row["validation_correct"] / row["validation_total"]
    if "held_total" in row:
        held_correct, held_total = row["held_correct"], row["held_total"]
        others = row["correct"] - held_correct, row["total"] - held_total
        for name, (correct, total) in {"held": (held_correct, held_total), "other": others}.items():
            if total:
                row[f"{name}_accuracy"] = correct / total
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
            for name in MEANS
            if (values := [row[name] for row in rows if name in row])
        },
        **fine_tuning_steps(rows),
    }


def mean_metrics(
    replies: Iterable[Mapping[str, float]], metrics: Iterable[Metric]
) -> dict[str, float]:
    """Return the means of metrics over clients, as columns ``NAME_mean``.

    Parameters
    ----------
    replies : iterable of mapping
        The metrics of each reply.
    metrics : iterable of Metric
        The metrics that the method declares.

    Returns
    -------
    dict of str to float
        The means of averaged metrics that at least one client reported.
    """
    rows = list(replies)
    means = {}
    for metric in metrics:
        values = [row[metric.name] for row in rows if metric.name in row]
        if metric.averaged and values:
            means[f"{metric.column}_mean"] = float(np.mean(values))
    return means


def log_round(row: Mapping[str, Any], num_rounds: int) -> None:
    """Log a round's accuracy in one line."""
    if row["accuracy_mean"] is None:
        log(INFO, "Round %d/%d: not evaluated", row["round"], num_rounds)
        return
    log(
        INFO,
        "Round %d/%d: accuracy mean %.1f%%, std %.1f points, worst %.1f%%, best %.1f%% "
        "(%d replies, %d failures%s)",
        row["round"],
        num_rounds,
        *(100 * row[f"accuracy_{name}"] for name in ("mean", "std", "min", "max")),
        row["replies"],
        row["failures"],
        f", {row['absent']} absent" if row["absent"] else "",
    )
