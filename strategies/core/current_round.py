"""The round that is running: its messages, what clients reported so far, and its seconds."""

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.core.client_info import ClientInfo
from strategies.core.evaluations import Evaluation
from strategies.core.exchange import Exchange, InTurn
from strategies.core.metrics import add_times, columns_of_training
from strategies.core.replies import Arrays, Metric
from strategies.core.rounds import mean_metrics


@dataclass
class CurrentRound:
    """A round from its first message to its record.

    Attributes
    ----------
    exchange : Exchange
        Addresses its messages, and reads the replies.
    grid : Grid or None
        The connection to the clients; None before the first round.
    evaluated : list of int
        Partition-ids of the clients that are evaluated in it.
    num_replies : int
        Number of valid replies to the first message.
    metrics : dict of int to dict
        Metrics of the train replies, by partition-id.
    seconds : dict of str to float
        Duration of the phases ``train``, ``server`` and ``evaluate``.
    started_at : float
        When a phase began that ends in another call of Flower.
    shared : dict
        Payloads that several clients receive, see `once`.
    """

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
        """Return the columns of the round's row that follow from its messages.

        Parameters
        ----------
        metrics : iterable of Metric
            The metrics that the method declares.
        """
        reported = self.metrics.values()
        return {
            **mean_metrics(reported, metrics),
            **self.exchange.traffic.totals(),
            **columns_of_training(reported),
            "replies": self.num_replies,
            "failures": len(self.exchange.failures),
        }

    def seconds_by_phase(self) -> dict[str, float]:
        """Return the columns with the duration of each phase."""
        return {f"seconds_{phase}": round(value, 4) for phase, value in self.seconds.items()}

    def client_rows(
        self, clients: Mapping[int, ClientInfo], evaluations: Mapping[int, Evaluation]
    ) -> list[dict[str, Any]]:
        """Return one row per client that was evaluated, sampled or failed in the round.

        Parameters
        ----------
        clients : mapping of int to ClientInfo
            All clients that have joined, by partition-id.
        evaluations : mapping of int to dict
            The evaluations of the round, by partition-id.
        """
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

    def once(self, key: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """Return a payload for several clients, made on first use in this round.

        Each receives the same arrays, so that traffic counts them once.
        """
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]
