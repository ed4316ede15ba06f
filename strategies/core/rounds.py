"""Records of a round, and observers of a run: who is told of them while it is running."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.flower import log
from strategies.core.replies import Arrays, Metric

NEW_CLIENTS = "new_clients"
"""The table of the new clients, one row each."""


@dataclass
class RoundRecord:
    """The results of one round."""

    server_round: int
    """The round, counted from 1 over the whole run."""
    row: dict[str, Any]
    """The row of the round, with accuracies."""
    clients: list[dict[str, Any]] = field(default_factory=list)
    """One row per client that was evaluated, sampled or failed in this round, with accuracies."""
    matrices: dict[str, NDArray[Any]] = field(default_factory=dict)
    """The method's matrices after the round, such as ``coefficients`` (N, N)."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The rows to write, by table, and ``rounds`` last. Those of ``rounds`` and ``clients`` are
    without accuracies, which follow from the table of evaluations."""
    state: Arrays = field(default_factory=dict)
    """The server's state, from which the run can be resumed."""
    global_model: Arrays = field(default_factory=dict)
    """The global model, if the method wants that of each round to be saved."""


class Observer:
    """Is told of the events of a run; subclasses override the methods that they need.

    The run directory, trackers and the progress bar are observers. The run directory writes an
    event down before it tells the others.
    """

    reads_log = False
    """Whether the lines of Flower's log go to `line_logged` and not to the terminal."""

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


def mean_metrics(
    replies: Iterable[Mapping[str, float]], metrics: Iterable[Metric]
) -> dict[str, float]:
    """Return the means of averaged metrics over the clients that report them, as ``NAME_mean``.

    `replies` are the metrics of each reply, `metrics` those that the method declares.
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
