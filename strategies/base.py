"""Base class of all strategies: the protocol of a run and of each round.

What a method writes is in `strategies.method`.
"""

import copy
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.core.evaluations import (
    DISTILLATION,
    EVALUATIONS,
    Evaluation,
    Evaluations,
    accuracy_statistics,
    with_evaluations,
    with_statistics,
    without_answers,
)
from strategies.core.exchange import Exchange
from strategies.core.flower import log
from strategies.core.membership import MEMBERS, Membership
from strategies.core.method_record import Need
from strategies.core.metrics import GRADIENT_STEPS, OF_TRAINING, gradient_steps, of_model
from strategies.core.plan import RunPlan, Settings
from strategies.core.replies import Arrays, Reply, TooFewRepliesError, encoded
from strategies.core.rounds import (
    NEW_CLIENTS,
    CurrentRound,
    EarlyStopping,
    Observer,
    Round,
    RoundRecord,
    StoppedEarly,
    log_round,
)
from strategies.core.state import State, named_arrays, read_state
from strategies.method import Method, Results, ServerModels

RETURNED = {
    State: "the method's state, a dataclass derived from State",
    Mapping: "a dict of arrays by name",
    Results: "Results(columns=..., matrices=..., tables=...)",
}
"""What hooks return, for error messages."""

CHANGING = ("state", "plan", "round", "current", "completed_rounds")
"""The attributes that change from round to round."""


class PersonalizedStrategy(Method, Strategy):
    """A Flower strategy in which every client has a personalized model.

    Without overrides it exchanges nothing. This is the baseline `local`.

    Parameters
    ----------
    plan : RunPlan
        Clients, rounds, sampling and seed.
    settings : Settings
        The method's own settings.
    observer : Observer, optional
        Is informed of every finished round.
    server_models : ServerModels, optional
        The models of the run, for methods that use models on the server.
    """

    def __init__(
        self,
        plan: RunPlan,
        settings: Settings,
        observer: Observer | None = None,
        server_models: ServerModels | None = None,
    ) -> None:
        self.check_plan(plan, settings)
        self.plan = plan
        self._early_stopping = EarlyStopping(plan.patience)
        self._planned_rounds = plan.num_server_rounds
        self.settings = settings
        self.observer = observer or Observer()
        self.server_models = server_models
        self.members = Membership(plan, Need.PUBLIC_DATA in self.record.needs)
        self.completed_rounds = 0
        self._rounds_before = 0
        self.evaluations = Evaluations(plan, self.members.clients, self.record.evaluates)
        self.state = None
        self._enter(CurrentRound(Exchange(self.members.clients, 0, plan)))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; while rounds run, none that a resumed run would lack."""
        if name not in CHANGING and "current" in vars(self) and self.current.exchange.server_round:
            raise AttributeError(
                f"`{name}` would be lost if the run is interrupted; declare it in the state, or "
                "use a local variable"
            )
        super().__setattr__(name, value)

    # ---- New clients ----------------------------------------------------------------------

    def for_new_clients(self) -> Self:
        """Return a copy that serves new clients, whose state is independent of this one."""
        host = copy.copy(self)
        host.state = copy.deepcopy(self.state or State())
        return host

    def receive_newcomers(self, grid: Grid) -> Results:
        """Serve the newcomers of a finished run, or raise `TooFewRepliesError`."""
        server_round = self.completed_rounds
        self._enter(CurrentRound(Exchange(self.members.clients, server_round, self.plan), grid))
        self.members.meet(grid, server_round)
        results = self.receive_new_clients(server_round)
        if not results.columns["new_clients"]:
            rows = results.tables[NEW_CLIENTS]
            failures = [f"client {row['partition_id']} {row['failure']}" for row in rows]
            reasons = "; ".join(failures or self.members.pending.reasons() or ["not connected"])
            ids = ", ".join(map(str, self.plan.newcomers))
            raise TooFewRepliesError(
                f"None of the newcomers has a model ({ids}: {reasons}); the run is as before."
            )
        return results

    def receive_new_clients(self, server_round: int) -> Results:
        """Personalize and evaluate the new clients after the last round of training.

        A copy of the server leads them through rounds of the method's own exchange, so that nothing
        about them reaches its state. They start from initial weights, among clients that have
        finished, and do not influence each other. A run that is interrupted meanwhile serves them
        from their first round.
        """
        plan, clients, grid = self.plan, self.members.clients, self.current.grid
        if server_round < plan.num_server_rounds or not plan.num_new:
            return Results()
        started_at, host, rounds = time.perf_counter(), self.for_new_clients(), self._new_rounds()
        log(INFO, "%d new clients run %d rounds each", plan.num_new, rounds)
        exchange = Exchange(clients, server_round, plan, trained_rounds=server_round)
        present = [n for n in self.members.reachable(grid) if n in self.members.new]
        metrics: dict[int, dict[str, float]] = {}
        for step in range(1, rounds + 1):
            host._enter(CurrentRound(exchange.further(step), grid))
            replies = host.train_new_clients(step, present) if present else {}
            for n, reply in replies.items():
                # A row covers all rounds, as its traffic does; other metrics are the last ones.
                taken = gradient_steps([metrics.get(n, {}), reply.metrics])
                metrics[n] = {**reply.metrics, GRADIENT_STEPS.name: taken}
            present = list(replies)
        # Without training, new clients are evaluated in the round of the other clients.
        host._enter(CurrentRound(exchange.further(rounds or server_round), grid))
        payloads = partial(host.evaluate_payload, rounds or server_round)
        messages = host.current.exchange.to_evaluate(present, payloads, grid)
        replied = host.current.send(messages, plan.round_timeout) if present else ()
        evaluations = host._evaluations_in(replied) if present else {}
        if rounds:
            evaluations = host._with_distillation(evaluations, present)
        found = {n: evaluation.row for n, evaluation in evaluations.items()}
        rows = CurrentRound(exchange, metrics=metrics).client_rows(clients, found)
        columns: dict[str, Any] = {
            **accuracy_statistics(rows),
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
        named = {f"new_{key}": value for key, value in columns.items()}
        return Results(columns=named, tables={NEW_CLIENTS: rows})

    def _new_rounds(self) -> int:
        """Return the number of rounds of new clients: all global models that a method keeps."""
        if not self.record.trains_new_clients:
            return 0
        of_training = self.plan.num_server_rounds
        chosen = 0 if self.record.keeps_global_models else self.plan.new_client_rounds
        return chosen or of_training

    def _enter(self, current: CurrentRound) -> None:
        self.current = current
        self.round = Round(self.members, current, self.observer)

    # ---- State -----------------------------------------------------------------------

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as named arrays, with what is known of the clients."""
        return {**named_arrays(self.state), **self.members.saved_arrays()}

    def restore(self, completed_rounds: int, saved: Arrays, initial: Arrays) -> None:
        """Continue after some rounds from saved arrays, or begin if there are none.

        Before the first round, they are what was noted in it. Raises `OtherStateError` for others.
        """
        if not hasattr(self, "members"):
            raise TypeError(f"{type(self).__name__}.__init__ has to call super().__init__(*args)")
        self.completed_rounds = self._rounds_before = completed_rounds
        self.members.resume(completed_rounds, saved)
        begun = self._returned("begin", self.begin(initial), State)
        arrays = {} if completed_rounds else named_arrays(begun)
        arrays |= {name: array for name, array in saved.items() if not name.startswith(MEMBERS)}
        self.state = read_state(type(begun), arrays)
        self.state = self.with_more_clients()

    def _returned(self, hook: str, value: Any, kind: type[Any]) -> Any:
        """Return what a hook of the method returned; refuse another kind, with what to return."""
        if isinstance(value, kind):
            return value
        name, given = type(self).__name__, type(value).__name__
        raise TypeError(f"{name}.{hook} returned a {given}; return {RETURNED[kind]}")

    def look_back(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replay the rows of earlier rounds of a resumed run for early stopping."""
        for row in rows:
            self.evaluations.look_back(row)
            self.plan = self._early_stopping.end_of(self.plan, row)

    # ---- Protocol: Flower's strategy interface ---------------------------------------

    def summary(self) -> None:
        """Log the settings of the strategy."""
        log(INFO, "\t├──> %d clients, %d sampled", self.plan.num_clients, self.plan.sample_size)
        log(INFO, "\t└──> %s", self.settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Query unknown nodes, sample, and address one message to each sampled client."""
        server_round += self._rounds_before
        if self.state is None:
            self.state = self.begin({name: array.numpy() for name, array in arrays.items()})
        best, starts = self._early_stopping.best_round, self.members.starts
        exchange = Exchange(self.members.clients, server_round, self.plan, best, starts=starts)
        self._enter(CurrentRound(exchange.after(self.current.exchange), grid))
        self.members.meet(grid, server_round)
        self.current.start_clock()
        free = self.members.stragglers.without(self.round.reachable)
        sampled = self.sample(server_round, free)
        self._discard_evaluations(server_round, sampled)
        self.evaluations.begin(server_round, self.plan)
        state = self.state_before_training(server_round, sampled)
        self.state = self._returned("state_before_training", state, State)
        payloads = {n: self.train_payload(server_round, n) for n in sampled}
        for payload in payloads.values():
            self._returned("train_payload", payload, Mapping)
        evaluate = self.plan.is_evaluated(server_round)
        distilled = self.evaluations.asks_for_distilled
        return exchange.messages(MessageType.TRAIN, "train", payloads, evaluate, distilled)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop invalid replies, and let the method aggregate the rest."""
        server_round += self._rounds_before
        self.current.stop_clock("train")
        exchange, stragglers = self.current.exchange, self.members.stragglers
        in_time, late = stragglers.divided(server_round, replies, self.current.grid)
        expected = (
            lambda n: self.expected_arrays(server_round, n),
            (*OF_TRAINING, *self.record.train_metrics, *self.evaluations.metrics),
            self._check_train_reply,
        )
        valid = exchange.valid_replies(in_time, *expected)
        if late:
            exchange.expect_late(late)
            came = exchange.valid_replies(late, *expected)
            taken = {n: reply for n, reply in came.items() if self.takes_late_reply(n)}
            log(INFO, "Late replies came of clients %s; %s count", [*came], [*taken] or "none")
            valid = dict(sorted({**taken, **valid}.items()))
        exchange.require_replies(len(valid), self.completed_rounds)
        self.current.keep(self.evaluations.keep(server_round, valid), self.members.clients)
        # A second exchange inside aggregate counts as training time, not as server time.
        with self.current.timed("server"):
            state = self.aggregate(server_round, self.bounded(valid))
        self.state = self._returned("aggregate", state, State)
        shared = self.global_model()
        return (ArrayRecord(dict(encoded(shared))) if shared else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address an evaluation message to every evaluated client without current counts."""
        server_round += self._rounds_before
        self.current.start_clock()
        # A client may have disconnected since its train reply, which can have its counts.
        counted = self.evaluations.current
        replied = counted.keys() & self.current.metrics.keys()
        candidates = sorted({*self.round.reachable, *replied})
        self.current.evaluated = self.plan.evaluated(server_round, candidates)
        asked = [n for n in self.current.evaluated if n not in counted]
        payloads = partial(self.evaluate_payload, server_round)
        return self.current.exchange.to_evaluate(asked, payloads, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Compute accuracy per client, and finish the round."""
        server_round += self._rounds_before
        self.current.stop_clock("evaluate")
        counted = self.evaluations.current
        counted |= self._evaluations_in(replies)
        results = self._returned("results", self.results(), Results)
        evaluated = {n: counted[n] for n in self.current.evaluated if n in counted}
        if server_round == self.plan.num_server_rounds:
            evaluated = self._with_distillation(evaluated, self.current.evaluated)
        table = self.evaluations.rows(server_round, evaluated)
        further = {n: evaluation.columns for n, evaluation in evaluated.items()}
        clients = self.current.client_rows(self.members.clients, further)
        row = self._round_row(server_round, evaluated, results)
        shown = with_statistics(row, with_evaluations(clients, table))
        log_round(shown, self.plan.num_server_rounds)
        new = self.receive_new_clients(server_round)
        self.plan = self._early_stopping.end_of(self.plan, shown)
        self.completed_rounds = server_round
        if server_round not in (self.plan.num_server_rounds, self._early_stopping.best_round):
            clients = without_answers(clients)
        tables = {EVALUATIONS: table, "clients": clients, **results.tables, **new.tables}
        finished = RoundRecord(
            server_round,
            {**shown, **new.columns},
            with_evaluations(clients, table),
            dict(results.matrices),
            {**tables, "rounds": [{**row, **new.columns}]},
            self.saved_arrays(),
            self.global_model() if self.record.keeps_global_models else {},
        )
        self.observer.round_finished(finished)
        if server_round == self.plan.num_server_rounds < self._planned_rounds:
            raise StoppedEarly
        statistics = {k: v for k, v in shown.items() if k.startswith("accuracy") and v is not None}
        return MetricRecord(statistics) if statistics else None

    def _evaluations_in(self, replies: Iterable[Message]) -> dict[int, Evaluation]:
        return self.evaluations.read(self.current.exchange, replies, self.record.evaluation_metrics)

    def _with_distillation(
        self, evaluations: dict[int, Evaluation], asked: Iterable[int]
    ) -> dict[int, Evaluation]:
        """Evaluate clients after distilling what the last round has taught, too.

        Its steps do not count, and clients keep nothing of it. A client that withholds its results
        is asked too, since it exports the better model.
        """
        # What several clients received before the training is older.
        self.current.shared.clear()
        payloads = {n: self.last_distillation(n) for n in asked}
        payloads = {n: arrays for n, arrays in payloads.items() if arrays}
        if not payloads:
            return evaluations
        exchange, read = self.current.exchange, self.evaluations
        with self.current.timed("evaluate"):
            messages = exchange.messages(MessageType.TRAIN, DISTILLATION, payloads, distilled=True)
            replies = self.current.send(messages, self.plan.round_timeout)
        valid = exchange.valid_replies(replies, lambda n: {}, read.metrics, read.check)
        further = {n: of_model("distilled", reply.metrics) for n, reply in valid.items()}
        return {
            n: replace(found, counts=[*found.counts, *further.get(n, [])])
            for n, found in evaluations.items()
        }

    # ---- Steps and results of a round ------------------------------------------------

    def _discard_evaluations(self, server_round: int, sampled: Iterable[int]) -> None:
        """Discard counts of models that change; after the last round all are evaluated."""
        is_last = server_round == self.plan.num_server_rounds
        changed = (
            sampled if self.record.evaluates_trained_model and not is_last else self.members.clients
        )
        for n in changed:
            self.evaluations.current.pop(n, None)

    def takes_late_reply(self, partition_id: int) -> bool:
        """Return whether a client's reply to an earlier round counts in this one."""
        return False

    def _check_train_reply(self, reply: Reply) -> None:
        self.evaluations.check(reply)
        self.check_reply(reply)

    def _round_row(
        self, server_round: int, evaluated: Iterable[int], results: Results
    ) -> dict[str, Any]:
        """Return what only the server knows of a round."""
        candidates = {*self.round.reachable, *evaluated}
        return {
            "round": server_round,
            **({"sampled_from": len(candidates)} if self.plan.evaluate_clients else {}),
            **self.current.columns(self.record.train_metrics),
            "absent": self.plan.num_clients - len(self.members.reachable(self.current.grid)),
            **results.columns,
            **{f"seconds_{phase}": round(s, 4) for phase, s in self.current.seconds.items()},
        }
