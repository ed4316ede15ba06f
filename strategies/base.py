"""What every personalized strategy shares: its hooks, and the protocol of a round.

A method overrides `PersonalizedStrategy.train_payload` (what one client is sent),
`expected_arrays` and `check_reply` (what a reply has to look like) and `aggregate` (what the
server learns from a round), declares the numbers that its clients report, and names in `kept`
the attributes from which it can be continued. Everything else lives here once.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from strategies.core.exchange import Exchange
from strategies.core.flower import log
from strategies.core.membership import ClientInfo, Membership
from strategies.core.newcomers import receive_new_clients
from strategies.core.patience import Patience, StoppedEarly
from strategies.core.plan import RunPlan, Settings, sample_clients
from strategies.core.replies import Arrays, Due, Metric, Reply, TooFewRepliesError
from strategies.core.rounds import (
    Evaluation,
    RoundRecord,
    RunObserver,
    accuracy_statistics,
    check_counts,
    client_rows,
    counts_due,
    log_round,
    mean_metrics,
    read_evaluation,
)
from strategies.core.server_models import ServerModels
from strategies.core.state import KeepsState
from strategies.core.traits import Traits


class PersonalizedStrategy(Traits, KeepsState, Strategy):
    """A Flower strategy in which every client keeps a model of its own.

    On its own it exchanges nothing: clients train by themselves and are evaluated. That
    is the baseline `local`; every other method overrides hooks.

    Parameters
    ----------
    plan : RunPlan
        Clients, rounds, sampling and seed.
    settings : Settings
        The method's own settings.
    observer : RunObserver, optional
        Is told of every finished round.
    """

    server_models: ServerModels
    """The run's models, for methods whose server builds some; given before `begin`."""

    def __init__(
        self, plan: RunPlan, settings: Settings, observer: RunObserver | None = None
    ) -> None:
        self.check_plan(plan, settings)
        self.plan = plan
        self.counts = counts_due(plan)
        self._patience = Patience(plan.patience)
        self._planned_rounds = plan.num_server_rounds
        self.settings = settings
        self.observer = observer
        self.members = Membership(plan, self.needs_public_data)
        self._newcomers = frozenset(plan.newcomers)
        self.completed_rounds = 0
        self._rounds_before = 0
        self._evaluations: dict[int, dict[str, float]] = {}
        self._seconds: dict[str, float] = {}
        self.begin_round(Exchange(self.clients, 0, plan))

    # ---- Hooks: what a method may override -------------------------------------------

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse settings that cannot work together.

        Raises
        ------
        ImpossiblePlanError
            In one sentence that says what is allowed.
        """

    @classmethod
    def shared_layers(cls, settings: Settings) -> slice:
        """Return which of a model's layers cross the network, by position; all of them here.

        Server and clients ask for it alike, so that their vectors have one length.
        """
        return slice(None)

    def begin(self, initial: Arrays) -> None:
        """Set the attributes in `kept` to what they are before the first round.

        Parameters
        ----------
        initial : mapping of str to ndarray
            The parts of the initial global model, for a method that shares one; else empty.
        """

    def sample(self, server_round: int, candidates: Sequence[int]) -> list[int]:
        """Return the partition-ids that train in this round, in ascending order."""
        return sample_clients(candidates, self.plan.sample_size, self.plan.seed, server_round)

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Return the arrays that one client is sent before it trains."""
        return {}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, Due]:
        """Return what every array of a train reply has to be."""
        return {}

    def check_reply(self, reply: Reply) -> None:
        """Refuse a train reply whose arrays have the right shape and yet make no sense.

        Raises
        ------
        InvalidReplyError, NotOnSimplexError
            With the reason; the client is then dropped from the round.
        """

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Learn from the valid replies of a round, given by ascending partition-id."""

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Return the arrays that one client is sent before it is evaluated."""
        return {}

    def global_model(self) -> Arrays:
        """Return the parts of the global model where the method has one."""
        return {}

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return the method's matrices after a round, by name."""
        return {}

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return rows for further tables of the run, each with ``round`` and ``partition_id``."""
        return {}

    def round_metrics(self) -> dict[str, float]:
        """Return further columns of the round's row, by name."""
        return {}

    # ---- Hooks for new clients: what `strategies.core.newcomers` calls on a copy ---------

    def before_new_clients(self) -> None:
        """Prepare the copy of the server that receives them."""

    def new_client_rounds(self) -> int:
        """Return how many rounds they train."""
        if not self.trains_new_clients:
            return 0
        return self.plan.new_client_rounds or self.plan.num_server_rounds

    def train_new_clients(self, step: int, newcomers: Sequence[int]) -> dict[int, Reply]:
        """Let them train one round, and return the valid replies: who gives none is dropped."""
        self.before_asking(step, newcomers)
        replies = self.exchange(
            "train",
            {n: self.new_client_payload(step, n) for n in newcomers},
            lambda n: self.expected_arrays(step, n),
            self.check_reply,
            self.train_metrics,
        )
        if replies:
            self.welcome(step, replies)
        return replies

    def new_client_payload(self, step: int, partition_id: int) -> Arrays:
        """Return the arrays that one of them is sent before a round, counted from 1."""
        return self.train_payload(step, partition_id)

    def welcome(self, step: int, replies: dict[int, Reply]) -> None:
        """Learn from their replies what concerns each alone, for its next round or evaluation."""

    # ---- State -----------------------------------------------------------------------

    def restore(self, completed_rounds: int, state: Arrays) -> None:
        """Continue after `completed_rounds` rounds from what `state` returned then."""
        self.completed_rounds = self._rounds_before = completed_rounds
        self.set_state(state)

    def look_back(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take note of the rows of the rounds before, from the first, where a run goes on."""
        for row in rows:
            self.plan = self._patience.end_of(self.plan, row)

    # ---- Clients ---------------------------------------------------------------------

    @property
    def clients(self) -> dict[int, ClientInfo]:
        """Everybody that was met, by partition-id."""
        return self.members.clients

    @property
    def trained(self) -> list[int]:
        """Everybody that was met and is in training, all but the new clients."""
        return [n for n in self.clients if n not in self._newcomers]

    def reachable(self, new: bool = False) -> list[int]:
        """Return the partition-ids of the connected clients in training, or of the new ones."""
        return [n for n in self.members.reachable(self.grid) if (n in self._newcomers) == new]

    def sizes(self, partition_ids: Iterable[int]) -> NDArray[np.float64]:
        """Return D_n of some clients, as they told when they were met; shape (R,)."""
        return np.array([self.clients[n].num_examples for n in partition_ids], dtype=np.float64)

    # ---- Protocol: Flower's strategy interface ---------------------------------------

    def summary(self) -> None:
        """Log the settings of the strategy."""
        log(INFO, "\t├──> %d clients, %d sampled", self.plan.num_clients, self.plan.sample_size)
        log(INFO, "\t└──> %s", self.settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Meet new clients, sample, and address one message to each sampled client."""
        server_round = self._round_of_run(server_round)
        if not all(hasattr(self, name) for name in self.kept):
            self.begin({name: array.numpy() for name, array in arrays.items()})
        best = self._patience.best_round
        self.begin_round(Exchange(self.clients, server_round, self.plan, best))
        self.grid = grid
        self.members.meet(grid, server_round)
        self._started_at = time.perf_counter()
        sampled = self.sample(server_round, self.reachable())
        self._forget_evaluations(server_round, sampled)
        self.before_asking(server_round, sampled)
        payloads = {n: self.train_payload(server_round, n) for n in sampled}
        evaluate = self.evaluates_trained_model and self.plan.is_evaluated(server_round)
        return self._exchange.messages(MessageType.TRAIN, "train", payloads, evaluate)

    def before_asking(self, server_round: int, sampled: Sequence[int]) -> None:
        """Take note of who is about to be asked to train."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop what fails the checks, and let the method learn from the rest."""
        server_round = self._round_of_run(server_round)
        self._seconds["train"] += time.perf_counter() - self._started_at
        valid = self._exchange.valid_replies(
            replies,
            lambda n: self.expected_arrays(server_round, n),
            (*self.train_metrics, *self.counts),
            self._check_train_reply,
        )
        self._num_replies = len(valid)
        self._require_replies(server_round)
        self._keep_metrics(valid)
        started_at = time.perf_counter()
        waited = self._seconds["train"]
        self.aggregate(server_round, valid)
        # A second exchange inside aggregate is the clients' time, not the server's.
        exchanged = self._seconds["train"] - waited
        self._seconds["server"] += time.perf_counter() - started_at - exchanged
        shared = self.global_model()
        return (ArrayRecord(dict(self._exchange.encoded(shared))) if shared else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address an evaluation message to every client whose counts are not known yet."""
        server_round = self._round_of_run(server_round)
        self._started_at = time.perf_counter()
        if not self.plan.is_evaluated(server_round):
            return []
        asked = [n for n in self.reachable() if n not in self._evaluations]
        return self._exchange.to_evaluate(asked, partial(self.evaluate_payload, server_round), grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Count accuracy per client, and close the round."""
        server_round = self._round_of_run(server_round)
        self._seconds["evaluate"] += time.perf_counter() - self._started_at
        self._evaluations |= self._evaluations_in(replies)
        evaluations = {}
        if self.plan.is_evaluated(server_round):
            online = set(self.reachable())
            evaluations = {n: row for n, row in sorted(self._evaluations.items()) if n in online}
        row = self._round_row(server_round, evaluations)
        log_round(row, self.plan.num_server_rounds)
        new = receive_new_clients(self, server_round)
        self.plan = self._patience.end_of(self.plan, row)
        self._notify(server_round, row | new.columns, evaluations, new.tables)
        if server_round == self.plan.num_server_rounds < self._planned_rounds:
            raise StoppedEarly
        statistics = {k: v for k, v in row.items() if k.startswith("accuracy") and v is not None}
        return MetricRecord(statistics) if statistics else None

    def exchange(
        self,
        phase: str,
        payloads: Mapping[int, Arrays],
        due: Callable[[int], Mapping[str, Due]],
        check: Callable[[Reply], None] = lambda reply: None,
        metrics: Sequence[Metric] = (),
    ) -> dict[int, Reply]:
        """Send a further train message within a round and return the valid replies.

        Parameters
        ----------
        phase : str
            What the client is to do; reaches it as ``config["phase"]``.
        payloads : mapping of int to mapping
            Arrays for each addressed client, by partition-id.
        due : callable
            Gives what every array of one client's reply has to be.
        check : callable, optional
            Refuses a reply as `check_reply` does.
        metrics : sequence of Metric
            Every number that a reply may hold.

        Returns
        -------
        dict of int to Reply
            Valid replies by ascending partition-id; the others were dropped with a warning.
        """
        started_at = time.perf_counter()
        messages = self._exchange.messages(MessageType.TRAIN, phase, payloads)
        replies = self.grid.send_and_receive(messages, timeout=self.plan.round_timeout)
        self._seconds["train"] += time.perf_counter() - started_at
        return self._exchange.valid_replies(replies, due, metrics, check)

    def evaluations_of(self, asked: Iterable[int], server_round: int) -> dict[int, Evaluation]:
        """Ask some clients for an evaluation within a round, and return the valid ones."""
        payload_for = partial(self.evaluate_payload, server_round)
        messages = self._exchange.to_evaluate(asked, payload_for, self.grid)
        replies = self.grid.send_and_receive(messages, timeout=self.plan.round_timeout)
        return self._evaluations_in(replies)

    def _evaluations_in(self, replies: Iterable[Message]) -> dict[int, Evaluation]:
        metrics = (*self.evaluation_metrics, *self.counts)
        valid = self._exchange.valid_replies(replies, lambda n: {}, metrics, self._check_counts)
        return {n: read_evaluation(reply.metrics) for n, reply in valid.items()}

    # ---- Steps of a round ------------------------------------------------------------

    def _round_of_run(self, server_round: int) -> int:
        """Return the round of the whole run: a resumed run does not start at 1 again."""
        return self._rounds_before + server_round

    def begin_round(self, exchange: Exchange) -> None:
        """Forget the messages, replies and times of the round before."""
        self._exchange = exchange
        self._num_replies = 0
        self._metrics: dict[int, dict[str, float]] = {}
        self._seconds = {"train": 0.0, "server": 0.0, "evaluate": 0.0}

    def _forget_evaluations(self, server_round: int, sampled: Iterable[int]) -> None:
        """Drop the counts of models that change; after the last round everybody is counted."""
        if not self.evaluates_trained_model or server_round == self.plan.num_server_rounds:
            self._evaluations = {}
        for n in sampled:
            self._evaluations.pop(n, None)

    def _check_counts(self, reply: Reply) -> None:
        check_counts(reply.metrics, self.clients[reply.partition_id])

    def _check_train_reply(self, reply: Reply) -> None:
        if any(metric.name in reply.metrics for metric in self.counts):
            self._check_counts(reply)
        self.check_reply(reply)

    def _keep_metrics(self, replies: Mapping[int, Reply]) -> None:
        """Keep what clients reported with their train replies: a method's numbers, and counts."""
        counted = {metric.name for metric in self.counts}
        for n, reply in replies.items():
            counts = {name: v for name, v in reply.metrics.items() if name in counted}
            self._metrics[n] = {k: v for k, v in reply.metrics.items() if k not in counted}
            if counts:
                self._evaluations[n] = read_evaluation(counts)

    def _require_replies(self, server_round: int) -> None:
        if self._num_replies >= self.plan.min_replies:
            return
        failures = self._exchange.failures
        reasons = "; ".join(f"client {n}, {reason}" for n, reason in failures.items())
        raise TooFewRepliesError(
            f"Round {server_round} has {self._num_replies} valid replies and min-replies is "
            f"{self.plan.min_replies} ({reasons}); {self.completed_rounds} rounds are complete."
        )

    # ---- What a round leaves behind --------------------------------------------------

    def _round_row(
        self, server_round: int, evaluations: Mapping[int, Mapping[str, float]]
    ) -> dict[str, Any]:
        return {
            "round": server_round,
            **accuracy_statistics(evaluations.values()),
            **mean_metrics(self._metrics.values(), self.train_metrics),
            **self._exchange.traffic.totals(),
            "replies": self._num_replies,
            "failures": len(self._exchange.failures),
            **self.round_metrics(),
            **{f"seconds_{phase}": round(value, 4) for phase, value in self._seconds.items()},
        }

    def _notify(
        self,
        server_round: int,
        row: dict[str, Any],
        evaluations: Mapping[int, Evaluation],
        tables: Mapping[str, list[dict[str, Any]]],
    ) -> None:
        self.completed_rounds = server_round
        if self.observer is None:
            return
        exchange = self._exchange
        clients = client_rows(
            server_round, self.clients, self._metrics, evaluations, exchange.traffic.by_client,
            exchange.failures,
        )  # fmt: skip
        tables = {**self.tables(), **tables}
        record = RoundRecord(server_round, row, clients, self.matrices(), tables)
        self.observer.round_finished(record, self)
