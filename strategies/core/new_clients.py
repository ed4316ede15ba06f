"""New clients: personalize and evaluate clients that join after the training.

A share of the clients, ``new-clients``, is never sampled. After the last round a temporary copy of
the server serves them, so that nothing about them reaches the state of the method. They go through
``new-client-rounds`` rounds of the method's own exchange, by default as many as the training had.
A new client starts from initial weights, among clients that have finished. New clients do not
influence each other. Afterwards each is evaluated like any client of the method.

Clients that join a finished run of a method that keeps its global models are served the same way.

A new client without a valid reply is dropped with a warning. A run that is interrupted while it
serves new clients repeats its last round and then serves them from their first round.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import INFO
from typing import Any, Protocol

from strategies.core.current_round import CurrentRound
from strategies.core.evaluations import Evaluation, accuracy_statistics
from strategies.core.exchange import Exchange
from strategies.core.flower import log
from strategies.core.membership import Membership
from strategies.core.metrics import GRADIENT_STEPS, gradient_steps
from strategies.core.plan import RunPlan
from strategies.core.replies import Reply

NEW_CLIENTS = "new_clients"
"""The table of the new clients, one row each."""


@dataclass(frozen=True)
class NewClientResults:
    """Results of the new clients; empty before the last round.

    Attributes
    ----------
    columns : dict of str to number
        Further columns of the round's row: ``new_NAME`` is ``NAME`` of the new clients.
    tables : dict of str to list of dict
        Rows of the new clients, like those of the other clients.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Host(Protocol):
    """A temporary copy of the server, which is changed."""

    def enter(self, current: CurrentRound) -> None:
        """Begin another round."""

    def train_new_clients(self, step: int, new_clients: Sequence[int]) -> dict[int, Reply]:
        """Train new clients for one round, and return the valid replies."""

    def evaluations_of(self, asked: Iterable[int], server_round: int) -> dict[int, Evaluation]:
        """Evaluate some clients within a round, and return the valid evaluations."""

    def results(self) -> Any:
        """Return what the run records of the method, with further ``columns``."""


class NewClientServer(Protocol):
    """What new clients need of a server."""

    plan: RunPlan
    members: Membership
    current: CurrentRound

    def for_new_clients(self) -> Host:
        """Return a copy that serves new clients, whose state is independent of this one."""

    def rounds_of_new_clients(self) -> int:
        """Return the number of training rounds of new clients."""


def receive_new_clients(strategy: NewClientServer, server_round: int) -> NewClientResults:
    """Personalize and evaluate the new clients after the last round of training.

    Parameters
    ----------
    strategy : NewClientServer
        The server, which is not changed.
    server_round : int
        The round that has just been evaluated.
    """
    plan, clients = strategy.plan, strategy.members.clients
    if server_round < plan.num_server_rounds or not plan.num_new:
        return NewClientResults()
    started_at = time.perf_counter()
    host, rounds, grid = (
        strategy.for_new_clients(),
        strategy.rounds_of_new_clients(),
        strategy.current.grid,
    )
    log(INFO, "%d new clients run %d rounds each", plan.num_new, rounds)
    exchange = Exchange(clients, server_round, plan, trained_rounds=server_round)
    present = [n for n in strategy.members.reachable(grid) if n in strategy.members.new]
    metrics: dict[int, dict[str, float]] = {}
    for step in range(1, rounds + 1):
        host.enter(CurrentRound(exchange.further(step), grid))
        replies = host.train_new_clients(step, present) if present else {}
        for n, reply in replies.items():
            # A row covers all rounds, like its traffic; other metrics are those of the last one.
            taken = gradient_steps([metrics.get(n, {}), reply.metrics])
            metrics[n] = {**reply.metrics, GRADIENT_STEPS.name: taken}
        present = list(replies)
    # Without training, new clients are evaluated in the round of the other clients.
    host.enter(CurrentRound(exchange.further(rounds or server_round), grid))
    evaluations = host.evaluations_of(present, rounds or server_round) if present else {}
    columns: dict[str, Any] = {
        **accuracy_statistics(evaluations.values()),
        **exchange.traffic.totals(),
        GRADIENT_STEPS.column: gradient_steps(metrics.values()),
        "clients": len(evaluations),
        "failures": plan.num_new - len(evaluations),
        **host.results().columns,
        "seconds": round(time.perf_counter() - started_at, 4),
    }
    if evaluations:
        mean, worst = 100 * columns["accuracy_mean"], 100 * columns["accuracy_min"]
        log(INFO, "New clients: accuracy mean %.1f%%, worst %.1f%%, %d of %d",
            mean, worst, len(evaluations), plan.num_new)  # fmt: skip
    rows = CurrentRound(exchange, metrics=metrics).client_rows(clients, evaluations)
    return NewClientResults({f"new_{key}": v for key, v in columns.items()}, {NEW_CLIENTS: rows})
