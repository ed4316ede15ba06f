"""What a round leaves behind: its row, its clients' rows, its matrices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import INFO
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from strategies.core.flower import log
from strategies.core.measures import LARGEST_COUNT, MEANS, check_class_counts, measured_metrics
from strategies.core.membership import ClientInfo
from strategies.core.plan import RunPlan
from strategies.core.replies import Arrays, InvalidReplyError, Metric

if TYPE_CHECKING:
    from strategies.base import PersonalizedStrategy

Evaluation = dict[str, float]
"""A client's row of results, as `read_evaluation` makes it of its counts."""

COUNTS = (
    Metric("correct", averaged=False, low=0, high=LARGEST_COUNT),
    Metric("total", averaged=False, low=1, high=LARGEST_COUNT),
    Metric("loss", averaged=False),
    Metric("validation-correct", averaged=False, low=0, high=LARGEST_COUNT),
    Metric("validation-total", averaged=False, low=0, high=LARGEST_COUNT),
    Metric("validation-loss", averaged=False),
)
"""What an evaluation reports; a loss that is no finite number is left out."""


def counts_due(plan: RunPlan) -> tuple[Metric, ...]:
    """Return what an evaluation may report in a run: `COUNTS`, and the measures asked for."""
    return (*COUNTS, *measured_metrics(plan.measures, plan.num_classes))


@dataclass
class RoundRecord:
    """Everything one round leaves behind.

    Attributes
    ----------
    server_round : int
        The round, counted from 1 over the whole run.
    row : dict
        One row of the run's table of rounds.
    clients : list of dict
        One row for each client that was evaluated, sampled or failed in this round.
    matrices : dict of str to ndarray
        The method's matrices after the round, such as ``coefficients`` (N, N).
    tables : dict of str to list of dict
        Rows of the method's further tables, each with a ``round`` and a ``partition_id``.
    """

    server_round: int
    row: dict[str, Any]
    clients: list[dict[str, Any]]
    matrices: dict[str, NDArray[Any]]
    tables: dict[str, list[dict[str, Any]]]


class RunObserver(Protocol):
    """Whoever wants to hear of a run as it goes, such as a run directory."""

    def about_to_ask(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take note, durably, of a part of the state that a round cut off must not undo."""

    def round_finished(self, record: RoundRecord, strategy: "PersonalizedStrategy") -> None:
        """Take note of a finished round; `strategy` gives the state to continue from."""

    def global_model(self, server_round: int) -> Arrays:
        """Give back the global model of a round, for a method whose global models are kept."""


def check_counts(metrics: Mapping[str, float], client: ClientInfo) -> None:
    """Refuse counts of correct answers that cannot be.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct`` and ``total``, and with a validation split ``validation-correct`` and
        ``validation-total``; counts by class where they are asked for.
    client : ClientInfo
        Sizes of its test and validation split, as it told them when it was met.

    Raises
    ------
    InvalidReplyError
        If a count is missing, or does not fit the others or the sizes.
    """
    for prefix, size in (("", client.test_size), ("validation-", client.validation_size)):
        total = metrics.get(f"{prefix}total", 0)
        correct = metrics.get(f"{prefix}correct", -1 if total else 0)
        if total != size or not correct <= total or correct < 0 or correct != int(correct):
            raise InvalidReplyError(
                f"counts {correct:g} {prefix}correct answers out of {total:g}, "
                f"and has {size} samples to be asked"
            )
    check_class_counts(metrics)


def read_evaluation(metrics: Mapping[str, float]) -> Evaluation:
    """Turn a client's counts into a row: accuracy is correct / total, never a mean of batches.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct``, ``total``, ``loss``, and with a validation split the same with the
        prefix ``validation-``; whatever else a method reports is kept as it is.

    Returns
    -------
    dict of str to float
        ``accuracy``, ``correct``, ``total``, ``loss``, ``validation_accuracy``, …; with counts
        by class ``held_accuracy`` on classes that the client trains on and ``other_accuracy`` on
        the others, each where its test split has some.
    """
    row = {name.replace("-", "_"): value for name, value in metrics.items()}
    row["accuracy"] = row["correct"] / row["total"]
    if row.get("validation_total"):
        row["validation_accuracy"] = row["validation_correct"] / row["validation_total"]
    if "held_total" in row:
        held_correct, held_total = row["held_correct"], row["held_total"]
        others = row["correct"] - held_correct, row["total"] - held_total
        for name, (correct, total) in {"held": (held_correct, held_total), "other": others}.items():
            if total:
                row[f"{name}_accuracy"] = correct / total
    return row


def accuracy_statistics(evaluations: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """Summarize the clients' accuracies.

    Parameters
    ----------
    evaluations : iterable of mapping
        One row of `read_evaluation` for each client.

    Returns
    -------
    dict of str to float or None
        Unweighted mean, standard deviation over clients (their spread, so with N in the
        denominator), worst, best, the mean weighted by test samples, mean loss and mean
        validation accuracy, None where there is nothing to summarize; and the mean of each further
        measure over those clients that have it.
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
    }


def mean_metrics(
    replies: Iterable[Mapping[str, float]], metrics: Iterable[Metric]
) -> dict[str, float]:
    """Return the mean over clients of what they reported, as columns ``NAME_mean``.

    Parameters
    ----------
    replies : iterable of mapping
        The metrics of each reply.
    metrics : iterable of Metric
        Those that the method declares.

    Returns
    -------
    dict of str to float
        Of the metrics that are averaged and that somebody reported.
    """
    rows = list(replies)
    means = {}
    for metric in metrics:
        values = [row[metric.name] for row in rows if metric.name in row]
        if metric.averaged and values:
            means[f"{metric.column}_mean"] = float(np.mean(values))
    return means


def client_rows(
    server_round: int,
    clients: Mapping[int, ClientInfo],
    metrics: Mapping[int, Mapping[str, float]],
    evaluations: Mapping[int, Mapping[str, float]],
    traffic: Mapping[int, Mapping[str, int]],
    failures: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Return a round's rows about clients: those evaluated, sampled or failed in it.

    Parameters
    ----------
    server_round : int
        The round.
    clients : mapping of int to ClientInfo
        Everybody that was met; all mappings are by partition-id.
    metrics, evaluations : mapping of int to mapping
        What clients reported with their train replies, and how they were evaluated.
    traffic : mapping of int to mapping
        What crossed the network.
    failures : mapping of int to str
        Who was dropped, and why.
    """
    return [
        {
            "round": server_round,
            "partition_id": n,
            "model": clients[n].model,
            "num_examples": clients[n].num_examples,
            **{name.replace("-", "_"): value for name, value in metrics.get(n, {}).items()},
            **evaluations.get(n, {}),
            **traffic.get(n, {}),
            "failure": failures.get(n),
        }
        for n in sorted({*evaluations, *failures, *traffic})
    ]


def log_round(row: Mapping[str, Any], num_rounds: int) -> None:
    """Log a round's accuracy in one line."""
    if row["accuracy_mean"] is None:
        log(INFO, "Round %d/%d: not evaluated", row["round"], num_rounds)
        return
    log(
        INFO,
        "Round %d/%d: accuracy mean %.1f%%, std %.1f points, worst %.1f%%, best %.1f%% "
        "(%d replies, %d failures)",
        row["round"],
        num_rounds,
        *(100 * row[f"accuracy_{name}"] for name in ("mean", "std", "min", "max")),
        row["replies"],
        row["failures"],
    )
