"""The rounds of a run: their records and observers, the one that is running, and the last one."""

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.core.evaluations import Row
from strategies.core.exchange import Exchange, InTurn
from strategies.core.flower import log
from strategies.core.membership import Membership
from strategies.core.metrics import OF_TRAINING, add_times, add_to_metrics, columns_of_training
from strategies.core.plan import RunPlan
from strategies.core.replies import Arrays, ClientInfo, ExpectedArray, Metric, Reply

NEW_CLIENTS = "new_clients"  # the table of the new clients, one row each


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


OnRound = Callable[[Mapping[str, Any]], None]  # is called with the row of each completed round


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
    """Return the means of averaged metrics over the clients that report them, as ``NAME_mean``."""
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


# ---- The round that is running --------------------------------------------------------


@dataclass
class CurrentRound:
    """A round from its first message to its record: messages, metrics and seconds by phase."""

    exchange: Exchange
    grid: Grid | None = None
    evaluated: list[int] = field(default_factory=list)
    num_replies: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "server": 0.0, "evaluate": 0.0}
    )
    started_at: float = field(default_factory=time.perf_counter)
    shared: dict[Hashable, Arrays] = field(default_factory=dict)

    def start_clock(self) -> None:
        """Begin a phase that ends with `stop_clock`."""
        self.started_at = time.perf_counter()

    def stop_clock(self, phase: str) -> None:
        """Add the time since `start_clock` to a phase."""
        self.seconds[phase] += time.perf_counter() - self.started_at

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of a block to a phase, without what counts for others meanwhile."""
        started_at, before = time.perf_counter(), sum(self.seconds.values())
        yield
        others = sum(self.seconds.values()) - before
        self.seconds[phase] += time.perf_counter() - started_at - others

    def send(self, messages: Collection[Message] | InTurn, timeout: float) -> Iterable[Message]:
        """Send messages within the round, and return the replies."""
        assert self.grid is not None, "no message is sent before the first round"
        return self.grid.send_and_receive(messages, timeout=timeout)

    def keep(self, metrics: dict[int, dict[str, float]], clients: Mapping[int, ClientInfo]) -> None:
        """Store the metrics of the train replies, by partition-id."""
        self.metrics, self.num_replies = metrics, len(metrics)
        add_times(self.metrics, clients, list(metrics), self.grid)

    def columns(self, metrics: Iterable[Metric]) -> dict[str, Any]:
        """Return the columns of the round's row that follow from its messages."""
        reported = self.metrics.values()
        return {
            **mean_metrics(reported, metrics),
            **self.exchange.traffic.totals(),
            **columns_of_training(reported),
            "replies": self.num_replies,
            "failures": len(self.exchange.failures),
        }

    def client_rows(
        self, clients: Mapping[int, ClientInfo], evaluations: Mapping[int, Row]
    ) -> list[Row]:
        """Return a row, with evaluations, of each client that was evaluated, sampled or failed."""
        traffic, failures = self.exchange.traffic.by_client, self.exchange.failures
        return [
            {
                "round": self.exchange.server_round,
                "partition_id": n,
                **({"name": clients[n].name} if clients[n].name else {}),
                "model": clients[n].model,
                "num_examples": clients[n].num_examples,
                **{name.replace("-", "_"): v for name, v in self.metrics.get(n, {}).items()},
                **evaluations.get(n, {}),
                **traffic.get(n, {}),
                "failure": failures.get(n),
            }
            for n in sorted({*evaluations, *failures, *traffic})
        ]


class Round:
    """The round that is running, as a method sees it."""

    def __init__(self, members: Membership, current: CurrentRound, observer: Observer) -> None:
        self._members = members
        self._current = current
        self._observer = observer

    @property
    def number(self) -> int:
        """Its number, from 1 over the whole run."""
        return self._current.exchange.server_round

    @property
    def clients(self) -> dict[int, ClientInfo]:
        """All clients that have joined, by partition-id."""
        return self._members.clients

    @property
    def new(self) -> frozenset[int]:
        """The clients that join only after the training."""
        return self._members.new

    @property
    def trained(self) -> list[int]:
        """All clients whose sizes are known, except the new clients, in ascending order."""
        return self._members.trained

    @property
    def reachable(self) -> list[int]:
        """The connected clients, except the new ones, in ascending order."""
        return [n for n in self._members.reachable(self._current.grid) if n not in self.new]

    @property
    def failures(self) -> dict[int, str]:
        """Why clients were dropped from the round, by partition-id."""
        return self._current.exchange.failures

    def sizes(self, partition_ids: Iterable[int]) -> NDArray[np.float64]:
        """Return D_n of some clients as reported when they joined, at most `weight_cap`; (R,)."""
        return self._members.sizes(partition_ids)

    def once(self, key: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """Return a payload for several clients, made on first use in this round.

        Each receives the same arrays, so that traffic counts them once.
        """
        shared = self._current.shared
        if key not in shared:
            shared[key] = make()
        return shared[key]

    def ask(
        self,
        phase: str,
        payloads: Mapping[int, Arrays],
        due: Callable[[int], Mapping[str, ExpectedArray]],
        check: Callable[[Reply], None] = lambda reply: None,
        metrics: Sequence[Metric] = (),
    ) -> dict[int, Reply]:
        """Send a further train message within the round and return the valid replies.

        Parameters
        ----------
        phase : str
            What the client has to do, sent as ``config["phase"]``.
        payloads : mapping of int to mapping
            Arrays for each addressed client, by partition-id.
        due : callable
            Returns the specification of every array of one client's reply.
        check : callable, optional
            Refuses a reply as `check_reply` of a method does.
        metrics : sequence of Metric
            The allowed metrics of a reply.

        Returns
        -------
        dict of int to Reply
            Valid replies by ascending partition-id; other clients are dropped with a warning.
        """
        current = self._current
        with current.timed("train"):
            messages = current.exchange.messages(MessageType.TRAIN, phase, payloads)
            replies = current.send(messages, self._members.plan.round_timeout)
        valid = current.exchange.valid_replies(replies, due, (*OF_TRAINING, *metrics), check)
        add_to_metrics(current.metrics, self.clients, valid, current.grid)
        return valid

    def save(self, arrays: Arrays) -> None:
        """Save a part of the state at once, which must survive an interrupted round."""
        self._observer.about_to_ask(arrays)

    def global_model(self, server_round: int) -> Arrays:
        """Return the saved global model of an earlier round; empty where none is saved."""
        return self._observer.global_model(server_round)


# ---- The last round --------------------------------------------------------------------


class StoppedEarly(Exception):  # noqa: N818 - not an error
    """Ends a run before its planned number of rounds."""


@dataclass
class EarlyStopping:
    """The best mean validation accuracy, and how many evaluations have passed since."""

    evaluations: int
    best: float = -1.0
    best_round: int = 0
    waited: int = 0

    def end_of(self, plan: RunPlan, row: Mapping[str, Any]) -> RunPlan:
        """Record a round's row; return the plan, with one more round if it no longer improves."""
        # The last round of a run that was extended may not be one of those evaluated regularly.
        if plan.is_evaluated(row["round"]):
            self.note(row["round"], row.get("validation_accuracy_mean"))
        last: int = row["round"] + 1
        if not self.is_over or last >= plan.num_server_rounds:
            return plan
        log(INFO, "Early stopping after round %d: no better validation accuracy in %d evaluations",
            last, self.waited)  # fmt: skip
        return plan.model_copy(update={"num_server_rounds": last})

    def note(self, server_round: int, accuracy: float | None) -> None:
        """Record the accuracy of an evaluation; None if there was none."""
        if accuracy is None:
            return
        self.waited += 1
        if accuracy > self.best:
            self.best, self.best_round, self.waited = accuracy, server_round, 0

    @property
    def is_over(self) -> bool:
        """Whether the patience is exhausted."""
        return 0 < self.evaluations <= self.waited
