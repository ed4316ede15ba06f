"""What every personalized strategy shares: who takes part, what is checked, what is counted.

A method overrides `PersonalizedStrategy.train_payload` (what one client is sent),
`expected_arrays` and `check_reply` (what a reply has to look like) and `aggregate` (what
the server learns from a round). Everything else, the protocol, lives here once.

Clients are known by their **partition-id** n = 0..N-1; Flower's node ids are random keys
and appear nowhere outside this module.
"""

import math
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, ClassVar, Protocol

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from strategies.randomness import random_generator

Payload = Mapping[str, Array]
"""Named arrays sent to a client. Arrays that several clients share are the same object."""


LONGEST_REASON = 200
"""Characters of a failure's reason that are logged and recorded."""

LONGEST_PAUSE = 8
"""Rounds after which a node that could not say who it is is asked again, at the latest."""


def kebab_case(name: str) -> str:
    """Return a field name as it is written in a run config, ``local_epochs`` → ``local-epochs``."""
    return name.replace("_", "-")


class Settings(BaseModel):
    """A method's own settings, read from its table of the run config.

    Subclasses name the table and declare one field a setting, with its default and its
    allowed range. A field ``public_batch_size`` is written ``public-batch-size``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab_case,
        populate_by_name=True,
        allow_inf_nan=False,
    )
    table: ClassVar[str] = ""


@dataclass(frozen=True)
class RunPlan:
    """What the server knows of a run before it starts.

    Attributes
    ----------
    num_clients : int
        N, the number of clients; partition-ids are 0..N-1.
    num_rounds : int
        Communication rounds.
    num_classes : int
        K, the number of classes.
    public_size : int
        P, public samples used in a round (0 where a method uses none).
    fraction_train : float
        Share of the clients sampled in a round, in (0, 1].
    min_replies : int
        A round with fewer valid replies stops the run.
    evaluate_every : int
        Clients are evaluated every that many rounds, and after the last.
    seed : int
        Seed of every draw of the server.
    run_id : str
        Names the run, also when it is resumed: what clients remember on disk belongs to it.
    public_hash : str
        Hash of the public set; a client that holds another is left out. Empty for the hash
        that most clients hold.
    connect_timeout : float
        Seconds to wait for N clients before the first round.
    round_timeout : float
        Seconds to wait for the replies to one exchange.
    """

    num_clients: int
    num_rounds: int
    num_classes: int
    public_size: int = 0
    fraction_train: float = 1.0
    min_replies: int = 1
    evaluate_every: int = 1
    seed: int = 0
    run_id: str = ""
    public_hash: str = ""
    connect_timeout: float = 60.0
    round_timeout: float = 3600.0


@dataclass(frozen=True)
class ClientInfo:
    """What a client said of itself when the server first met it.

    Attributes
    ----------
    partition_id : int
        n, the client's index in every matrix.
    node_id : int
        Flower's address of it.
    model : str
        Name of its architecture.
    num_examples : int
        D_n, the number of its private training samples.
    public_hash : str
        Hash of its public set.
    """

    partition_id: int
    node_id: int
    model: str
    num_examples: int
    public_hash: str = ""


@dataclass(frozen=True)
class Reply:
    """A client's reply that passed the checks.

    Attributes
    ----------
    partition_id : int
        Who replied.
    arrays : dict of str to ndarray
        The named arrays of the reply.
    metrics : dict of str to float
        The numbers of the reply.
    message : Message
        The Flower message itself.
    """

    partition_id: int
    arrays: dict[str, NDArray[Any]]
    metrics: dict[str, float]
    message: Message


@dataclass
class Stranger:
    """A connected node that is no client yet, because it gave no valid answer.

    Attributes
    ----------
    failures : int
        How often it was asked in vain.
    next_round : float
        The round in which it is asked again; infinite if never.
    reasons : set of str
        What was wrong; each reason is logged once.
    """

    failures: int = 0
    next_round: float = 0
    reasons: set[str] = field(default_factory=set)


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
    """

    server_round: int
    row: dict[str, Any]
    clients: list[dict[str, Any]]
    matrices: dict[str, NDArray[Any]]


class RunObserver(Protocol):
    """Whoever wants to hear of finished rounds, such as a run directory."""

    def round_finished(self, record: RoundRecord, strategy: "PersonalizedStrategy") -> None:
        """Take note of a finished round; `strategy` gives the state to continue from."""


class InvalidReplyError(ValueError):
    """A reply that must not enter the aggregation; the message says why."""


class OtherPublicSetError(InvalidReplyError):
    """A client that stays out of the run: it predicts on other samples than its peers."""


class TooFewRepliesError(RuntimeError):
    """A round in which too few clients answered to go on."""


class ImpossiblePlanError(ValueError):
    """A combination of settings that cannot work; the message says what is allowed."""


@dataclass
class Traffic:
    """Numbers and bytes that crossed the network in one round to train.

    What is sent to evaluate is not counted: a deployment evaluates when it likes.

    Attributes
    ----------
    numbers_up, bytes_up : int
        From clients to server.
    numbers_down, bytes_down : int
        From server to clients, each client counted.
    numbers_down_broadcast : int
        From server to clients, arrays that clients share counted once.
    """

    numbers_up: int = 0
    bytes_up: int = 0
    numbers_down: int = 0
    bytes_down: int = 0
    numbers_down_broadcast: int = 0
    by_client: dict[int, dict[str, int]] = field(default_factory=dict)
    # Holding the arrays themselves keeps their ids from being given to new arrays.
    _broadcast: dict[int, Array] = field(default_factory=dict)

    def count_down(self, partition_id: int, payload: Payload) -> None:
        """Count what one client is sent."""
        numbers, size = count_numbers(payload), count_bytes(payload)
        self.numbers_down += numbers
        self.bytes_down += size
        for array in payload.values():
            if id(array) not in self._broadcast:
                self._broadcast[id(array)] = array
                self.numbers_down_broadcast += math.prod(array.shape)
        self._client(partition_id)["numbers_down"] += numbers
        self._client(partition_id)["bytes_down"] += size

    def count_up(self, partition_id: int, arrays: Payload) -> None:
        """Count what one client sent, valid or not."""
        numbers, size = count_numbers(arrays), count_bytes(arrays)
        self.numbers_up += numbers
        self.bytes_up += size
        self._client(partition_id)["numbers_up"] += numbers
        self._client(partition_id)["bytes_up"] += size

    def _client(self, partition_id: int) -> dict[str, int]:
        empty = {"numbers_up": 0, "numbers_down": 0, "bytes_up": 0, "bytes_down": 0}
        return self.by_client.setdefault(partition_id, empty)


def count_numbers(payload: Payload) -> int:
    """Return how many numbers the arrays of a payload hold."""
    return sum(math.prod(array.shape) for array in payload.values())


def count_bytes(payload: Payload) -> int:
    """Return how many bytes the arrays of a payload take on the wire."""
    return sum(len(array.data) for array in payload.values())


def sample_clients(
    candidates: Sequence[int],
    size: int,
    seed: int,
    server_round: int,
    probabilities: NDArray[np.float64] | None = None,
) -> list[int]:
    """Sample clients without replacement, as a function of seed and round.

    Parameters
    ----------
    candidates : sequence of int
        Partition-ids that can be reached, in ascending order.
    size : int
        How many to sample; all candidates where there are no more than that.
    seed, server_round : int
        What the draw depends on.
    probabilities : ndarray, optional
        Shape (len(candidates),), positive weights of the candidates; uniform if left out.

    Returns
    -------
    list of int
        Sampled partition-ids in ascending order.
    """
    if size >= len(candidates):
        return sorted(candidates)
    if probabilities is not None:
        probabilities = probabilities / probabilities.sum()
    generator = random_generator(seed, "sampling", server_round)
    chosen = generator.choice(candidates, size, replace=False, p=probabilities)
    return sorted(int(partition_id) for partition_id in chosen)


def check_simplex(predictions: NDArray[Any], name: str, tolerance: float = 1e-3) -> None:
    """Refuse predictions whose rows are no probability distributions.

    Parameters
    ----------
    predictions : ndarray
        Shape (..., K), finite.
    name : str
        What to call them in the error.
    tolerance : float
        How far a row's sum may be from 1, and an entry below 0.

    Raises
    ------
    InvalidReplyError
        If an entry is negative or a row does not sum to 1.
    """
    if predictions.size and float(predictions.min()) < -tolerance:
        raise InvalidReplyError(f"{name} holds the negative probability {predictions.min():.3g}")
    row_sums = predictions.sum(axis=-1, dtype=np.float64)
    worst = float(np.abs(row_sums - 1).max(initial=0.0))
    if worst > tolerance:
        raise InvalidReplyError(f"{name} has a row whose sum is off 1 by {worst:.3g}")


def checked_arrays(
    arrays: Payload, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Any]]:
    """Decode the arrays of a reply after checking that they are what was asked for.

    Names, shapes and sizes are compared before a byte is decoded, so that an oversized
    reply costs the server nothing more than its receipt.

    Parameters
    ----------
    arrays : mapping of str to Array
        Arrays as they came.
    expected : mapping of str to tuple of int
        Shape of every array that must be there, and of no other.

    Returns
    -------
    dict of str to ndarray
        The decoded arrays, all finite.

    Raises
    ------
    InvalidReplyError
        If a name, shape or type differs, or a value is not finite.
    """
    if arrays.keys() != expected.keys():
        raise InvalidReplyError(f"has arrays {sorted(arrays)} where {sorted(expected)} are due")
    return {name: _checked_array(name, array, expected[name]) for name, array in arrays.items()}


def _checked_array(name: str, array: Array, shape: tuple[int, ...]) -> NDArray[Any]:
    if tuple(array.shape) != shape:
        raise InvalidReplyError(f"{name} has shape {tuple(array.shape)} where {shape} is due")
    # 8 bytes is the widest number in use; the rest is room for the header.
    if len(array.data) > 8 * math.prod(shape) + 1024:
        raise InvalidReplyError(f"{name} is larger than its shape {shape} allows")
    try:
        values = array.numpy()
    except (TypeError, ValueError, EOFError, OSError) as error:
        raise InvalidReplyError(f"{name} cannot be decoded ({error})") from error
    if values.shape != shape or values.dtype.kind not in "fiu":
        raise InvalidReplyError(f"{name} holds {values.dtype} of shape {values.shape}, not {shape}")
    if not np.isfinite(values).all():
        raise InvalidReplyError(f"{name} holds NaN or infinity")
    return values


class PersonalizedStrategy(Strategy):
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

    settings_type: ClassVar[type[Settings]] = Settings
    """Type of the method's settings."""

    needs_one_model: ClassVar[bool] = False
    """Whether all clients need the same architecture."""

    needs_public_data: ClassVar[bool] = False
    """Whether clients predict on public data."""

    needs_validation_data: ClassVar[bool] = False
    """Whether clients need a validation split."""

    keeps_global_models: ClassVar[bool] = False
    """Whether each round's global model belongs in the run directory."""

    def __init__(
        self, plan: RunPlan, settings: Settings, observer: RunObserver | None = None
    ) -> None:
        self.check_plan(plan, settings)
        self.plan = plan
        self.settings = settings
        self.observer = observer
        self.completed_rounds = 0
        self.clients: dict[int, ClientInfo] = {}
        self._strangers: dict[int, Stranger] = {}
        self.global_arrays = ArrayRecord()
        self._rounds_before = 0
        self._public_hash = plan.public_hash
        self._seconds: dict[str, float] = {}
        self._sent: dict[int, int] = {}
        self._failures: dict[int, str] = {}
        self._begin_round()

    # ---- Hooks: what a method may override -------------------------------------------

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse settings that cannot work together.

        Raises
        ------
        ImpossiblePlanError
            In one sentence that says what is allowed.
        """

    def sample(self, server_round: int, candidates: Sequence[int]) -> list[int]:
        """Return the partition-ids that train in this round, in ascending order."""
        return sample_clients(candidates, self.sample_size, self.plan.seed, server_round)

    def train_payload(self, server_round: int, partition_id: int) -> Payload:
        """Return the arrays that one client is sent before it trains."""
        return {}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every array that a train reply must hold."""
        return {}

    def check_reply(self, reply: Reply) -> None:
        """Refuse a reply whose arrays have the right shape and yet make no sense.

        Raises
        ------
        InvalidReplyError
            With the reason; the client is then dropped from the round.
        """

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ArrayRecord | None:
        """Learn from the valid replies of a round, given by ascending partition-id.

        Returns
        -------
        ArrayRecord or None
            The new global model where the method has one.
        """
        return None

    def evaluate_payload(self, server_round: int, partition_id: int) -> Payload:
        """Return the arrays that one client is sent before it is evaluated."""
        return {}

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return the method's matrices after a round, by name."""
        return {}

    def round_metrics(self) -> dict[str, float]:
        """Return further columns of the round's row, by name."""
        return {}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which the method can be continued."""
        return {}

    def restore(self, completed_rounds: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue after `completed_rounds` rounds from what `state` returned then."""
        self.completed_rounds = self._rounds_before = completed_rounds

    # ---- Protocol: Flower's strategy interface ---------------------------------------

    def summary(self) -> None:
        """Log the settings of the strategy."""
        log(INFO, "\t├──> %d clients, %d sampled", self.plan.num_clients, self.sample_size)
        log(INFO, "\t└──> %s", self.settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Meet new clients, sample, and address one message to each sampled client."""
        server_round = self._round_of_run(server_round)
        self._begin_round()
        self.grid = grid
        self.global_arrays = arrays
        self._meet_clients(grid, server_round)
        self._started_at = time.perf_counter()
        sampled = self.sample(server_round, self.reachable())
        payloads = {n: self.train_payload(server_round, n) for n in sampled}
        return self._messages(MessageType.TRAIN, server_round, "train", payloads)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop what fails the checks, and let the method learn from the rest."""
        server_round = self._round_of_run(server_round)
        self._seconds["train"] += time.perf_counter() - self._started_at
        valid = self._valid_replies(
            replies, lambda n: self.expected_arrays(server_round, n), self.check_reply
        )
        self._num_replies = len(valid)
        self._require_replies(server_round)
        started_at = time.perf_counter()
        waited = self._seconds["train"]
        arrays = self.aggregate(server_round, valid)
        # A second exchange inside aggregate is the clients' time, not the server's.
        exchanged = self._seconds["train"] - waited
        self._seconds["server"] += time.perf_counter() - started_at - exchanged
        return arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address an evaluation message to every client, sampled or not."""
        server_round = self._round_of_run(server_round)
        self.global_arrays = arrays
        self._started_at = time.perf_counter()
        if not self._is_evaluated(server_round):
            self._sent = {}
            return []
        payloads = {n: self.evaluate_payload(server_round, n) for n in self.reachable()}
        return self._messages(MessageType.EVALUATE, server_round, "evaluate", payloads)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Count accuracy per client, and close the round."""
        server_round = self._round_of_run(server_round)
        self._seconds["evaluate"] += time.perf_counter() - self._started_at
        valid = self._valid_replies(replies, lambda n: {}, check_evaluation)
        evaluations = {n: read_evaluation(reply.metrics) for n, reply in valid.items()}
        row = self._round_row(server_round, evaluations)
        self._log_round(server_round, row)
        self._notify(server_round, row, evaluations)
        statistics = {k: v for k, v in row.items() if k.startswith("accuracy") and v is not None}
        return MetricRecord(statistics) if statistics else None

    def exchange(
        self,
        server_round: int,
        phase: str,
        payloads: Mapping[int, Payload],
        expected: Mapping[int, Mapping[str, tuple[int, ...]]],
    ) -> dict[int, Reply]:
        """Send a further train message within a round and return the valid replies.

        Parameters
        ----------
        server_round : int
            The round of the run.
        phase : str
            What the client is to do; reaches it as ``config["phase"]``.
        payloads : mapping of int to Payload
            Arrays for each addressed client, by partition-id.
        expected : mapping of int to mapping
            Name and shape of every array that each client's reply must hold.

        Returns
        -------
        dict of int to Reply
            Valid replies by ascending partition-id; the others were dropped with a warning.
        """
        started_at = time.perf_counter()
        messages = self._messages(MessageType.TRAIN, server_round, phase, payloads)
        replies = self.grid.send_and_receive(messages, timeout=self.plan.round_timeout)
        self._seconds["train"] += time.perf_counter() - started_at
        return self._valid_replies(replies, lambda n: expected[n], self.check_reply)

    # ---- Clients ---------------------------------------------------------------------

    @property
    def sample_size(self) -> int:
        """How many clients are sampled in a round, at least one."""
        return max(1, round(self.plan.fraction_train * self.plan.num_clients))

    def _round_of_run(self, server_round: int) -> int:
        """Return the round of the whole run: a resumed run does not start at 1 again."""
        return self._rounds_before + server_round

    def reachable(self) -> list[int]:
        """Return the partition-ids of the connected clients, in ascending order."""
        online = set(self.grid.get_node_ids())
        return sorted(n for n, client in self.clients.items() if client.node_id in online)

    def _meet_clients(self, grid: Grid, server_round: int) -> None:
        """Ask nodes for their partition-id until they tell; wait for N nodes the first time."""
        deadline = time.monotonic() + (0 if self.clients else self.plan.connect_timeout)
        while len(nodes := set(grid.get_node_ids())) < self.plan.num_clients:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        if not self.clients and len(nodes) < self.plan.num_clients:
            raise TooFewRepliesError(
                f"The run needs {self.plan.num_clients} clients and {len(nodes)} are connected: "
                "connect more (in a simulation: num-supernodes), or set num-clients."
            )
        asked = self._nodes_to_ask(nodes, server_round)
        if not asked:
            return
        content = RecordDict({"config": ConfigRecord({"phase": "properties"})})
        questions = [Message(content, node_id, MessageType.QUERY) for node_id in asked]
        answers = list(grid.send_and_receive(questions, timeout=self.plan.round_timeout))
        self._public_hash = self._public_hash or most_common_hash(answers)
        known = set(self.clients)
        for answer in answers:
            self._meet(answer, server_round)
        for node_id in sorted(set(asked) - {answer.metadata.src_node_id for answer in answers}):
            self._leave_out(node_id, server_round, f"node {node_id} did not answer in time")
        for n in sorted(set(self.clients) - known) if known else []:
            log(INFO, "Client %d joined in round %d", n, server_round)
        if len(self.clients) < self.plan.min_replies:
            reasons = [reason for s in self._strangers.values() for reason in sorted(s.reasons)]
            first = next(iter(reasons), "too few have another partition-id")
            raise TooFewRepliesError(
                f"{len(self.clients)} clients can take part and min-replies is "
                f"{self.plan.min_replies}; the first that cannot: {first}."
            )

    def _nodes_to_ask(self, nodes: set[int], server_round: int) -> list[int]:
        """Return the nodes that are no clients, without those that failed a short time ago."""
        unknown = nodes - {client.node_id for client in self.clients.values()}
        strangers = self._strangers
        return sorted(
            n for n in unknown if n not in strangers or strangers[n].next_round <= server_round
        )

    def _meet(self, answer: Message, server_round: int) -> None:
        """Register one client, or note why it cannot take part."""
        node_id = answer.metadata.src_node_id
        try:
            client = read_client(answer)
            self._check_client(client)
        except OtherPublicSetError as error:
            self._leave_out(node_id, math.inf, str(error))
        except InvalidReplyError as error:
            self._leave_out(node_id, server_round, str(error))
        else:
            self.clients[client.partition_id] = client
            self._strangers.pop(node_id, None)

    def _leave_out(self, node_id: int, server_round: float, reason: str) -> None:
        """Note that a node was asked in vain; it is asked again after 1, 2, 4, 8, 8, … rounds."""
        stranger = self._strangers.setdefault(node_id, Stranger())
        stranger.next_round = server_round + min(2**stranger.failures, LONGEST_PAUSE)
        stranger.failures += 1
        if reason not in stranger.reasons:
            log(WARNING, "Left out: %s", reason)
        stranger.reasons.add(reason)

    def _check_client(self, client: ClientInfo) -> None:
        n = client.partition_id
        if not 0 <= n < self.plan.num_clients:
            raise InvalidReplyError(f"partition {n} is outside 0..{self.plan.num_clients - 1}")
        if client.num_examples < 1:
            raise InvalidReplyError(f"client {n} has {client.num_examples} training samples")
        known = self.clients.get(n)
        if known and known.node_id in self.grid.get_node_ids():
            raise InvalidReplyError(f"partition {n} is already held by another node")
        if self.needs_public_data and client.public_hash != self._public_hash:
            raise OtherPublicSetError(
                f"client {n} holds another public set (hash {client.public_hash[:12]}) than "
                f"the run's ({self._public_hash[:12]})"
            )

    # ---- Messages --------------------------------------------------------------------

    def _begin_round(self) -> None:
        self.traffic = Traffic()
        self._failures = {}
        self._sent = {}
        self._num_replies = 0
        self._seconds = {"train": 0.0, "server": 0.0, "evaluate": 0.0}

    def _messages(
        self, message_type: str, server_round: int, phase: str, payloads: Mapping[int, Payload]
    ) -> list[Message]:
        self._sent = {self.clients[n].node_id: n for n in payloads}
        config = ConfigRecord(
            {"server-round": server_round, "phase": phase, "run-id": self.plan.run_id}
        )
        messages = []
        for partition_id, payload in payloads.items():
            if message_type == MessageType.TRAIN:
                self.traffic.count_down(partition_id, payload)
            content = RecordDict({"arrays": ArrayRecord(dict(payload)), "config": config})
            node_id = self.clients[partition_id].node_id
            messages.append(Message(content, node_id, message_type, group_id=str(server_round)))
        return messages

    def _valid_replies(
        self,
        replies: Iterable[Message],
        expected: Callable[[int], Mapping[str, tuple[int, ...]]],
        check: Callable[[Reply], None],
    ) -> dict[int, Reply]:
        """Decode and check replies; a client that was asked and gave no valid one is dropped."""
        valid: dict[int, Reply] = {}
        silent = dict(self._sent)
        for message in replies:
            partition_id = silent.pop(message.metadata.src_node_id, None)
            if partition_id is None:
                continue
            try:
                reply = self._read_reply(partition_id, message, expected(partition_id))
                check(reply)
                valid[partition_id] = reply
            except InvalidReplyError as error:
                self._drop(partition_id, str(error))
        for partition_id in silent.values():
            self._drop(partition_id, "no reply in time")
        # Replies come in any order; sums over them must not depend on it.
        return dict(sorted(valid.items()))

    def _read_reply(
        self, partition_id: int, message: Message, expected: Mapping[str, tuple[int, ...]]
    ) -> Reply:
        if message.has_error():
            raise InvalidReplyError(error_reason(message))
        content = message.content
        arrays = content.array_records.get("arrays", ArrayRecord())
        self.traffic.count_up(partition_id, arrays)
        claimed = content.config_records.get("info", ConfigRecord()).get("partition-id")
        if claimed != partition_id:
            raise InvalidReplyError(f"claims to be partition {claimed!r}")
        metrics = {
            name: float(value)
            for name, value in content.metric_records.get("metrics", MetricRecord()).items()
            if not isinstance(value, list)
        }
        return Reply(partition_id, checked_arrays(arrays, expected), metrics, message)

    def _drop(self, partition_id: int, reason: str) -> None:
        self._failures[partition_id] = reason
        log(WARNING, "Dropped from this round: client %d, %s", partition_id, reason)

    def _require_replies(self, server_round: int) -> None:
        if self._num_replies >= self.plan.min_replies:
            return
        reasons = "; ".join(f"client {n}, {reason}" for n, reason in self._failures.items())
        raise TooFewRepliesError(
            f"Round {server_round} has {self._num_replies} valid replies and min-replies is "
            f"{self.plan.min_replies} ({reasons}); {self.completed_rounds} rounds are complete."
        )

    # ---- Metrics ---------------------------------------------------------------------

    def _is_evaluated(self, server_round: int) -> bool:
        last = server_round == self.plan.num_rounds
        return last or server_round % self.plan.evaluate_every == 0

    def _round_row(
        self, server_round: int, evaluations: Mapping[int, Mapping[str, float]]
    ) -> dict[str, Any]:
        traffic = self.traffic
        return {
            "round": server_round,
            **accuracy_statistics(evaluations.values()),
            "numbers_up": traffic.numbers_up,
            "numbers_down": traffic.numbers_down,
            "numbers_down_broadcast": traffic.numbers_down_broadcast,
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "replies": self._num_replies,
            "failures": len(self._failures),
            **self.round_metrics(),
            **{f"seconds_{phase}": round(value, 4) for phase, value in self._seconds.items()},
        }

    def _log_round(self, server_round: int, row: Mapping[str, Any]) -> None:
        if row["accuracy_mean"] is None:
            log(INFO, "Round %d/%d: not evaluated", server_round, self.plan.num_rounds)
            return
        log(
            INFO,
            "Round %d/%d: accuracy mean %.4f, std %.4f, worst %.4f, best %.4f "
            "(%d replies, %d failures)",
            server_round,
            self.plan.num_rounds,
            row["accuracy_mean"],
            row["accuracy_std"],
            row["accuracy_min"],
            row["accuracy_max"],
            row["replies"],
            row["failures"],
        )

    def _notify(
        self,
        server_round: int,
        row: dict[str, Any],
        evaluations: Mapping[int, Mapping[str, float]],
    ) -> None:
        self.completed_rounds = server_round
        if self.observer is None:
            return
        concerned = sorted({*evaluations, *self._failures, *self.traffic.by_client})
        clients = [
            {
                "round": server_round,
                "partition_id": n,
                "model": self.clients[n].model,
                **evaluations.get(n, {}),
                **self.traffic.by_client.get(n, {}),
                "failure": self._failures.get(n),
            }
            for n in concerned
        ]
        record = RoundRecord(server_round, row, clients, self.matrices())
        self.observer.round_finished(record, self)


def read_client(answer: Message) -> ClientInfo:
    """Read what a client says of itself.

    Raises
    ------
    InvalidReplyError
        If it failed, or left out what is needed.
    """
    node_id = answer.metadata.src_node_id
    if answer.has_error():
        raise InvalidReplyError(f"node {node_id}, {error_reason(answer)}")
    try:
        info = answer.content.config_records["info"]
        metrics = answer.content.metric_records["metrics"]
        return ClientInfo(
            partition_id=int(str(info["partition-id"])),
            node_id=node_id,
            model=str(info["model"]),
            num_examples=int(metrics["num-examples"]),  # type: ignore[arg-type]
            public_hash=str(info.get("public-hash", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidReplyError(f"node {node_id} does not say who it is ({error!r})") from error


def most_common_hash(answers: Iterable[Message]) -> str:
    """Return the hash of the public set that most clients hold; empty if none tells."""
    hashes = [
        str(answer.content.config_records["info"].get("public-hash", ""))
        for answer in answers
        if not answer.has_error() and "info" in answer.content.config_records
    ]
    return max(sorted(set(hashes)), key=hashes.count, default="")


def error_reason(message: Message) -> str:
    """Return why a client failed, in one line of at most `LONGEST_REASON` characters."""
    lines = (message.error.reason or "it gave no reason").strip().splitlines()
    return textwrap.shorten(f"it failed: {lines[-1]}", LONGEST_REASON)


def check_evaluation(reply: Reply) -> None:
    """Refuse an evaluation without a plausible count of correct answers.

    Raises
    ------
    InvalidReplyError
        If ``correct`` and ``total`` are missing or do not fit together.
    """
    correct, total = reply.metrics.get("correct", -1), reply.metrics.get("total", 0)
    if not 0 <= correct <= total or total < 1:
        raise InvalidReplyError(f"counts {correct:g} correct answers out of {total:g}")


def read_evaluation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Turn a client's counts into a row: accuracy is correct / total, never a mean of batches.

    Parameters
    ----------
    metrics : mapping of str to float
        ``correct``, ``total``, ``loss``, and with a validation split the same with the
        prefix ``validation-``; whatever else a method reports is kept as it is.

    Returns
    -------
    dict of str to float
        ``accuracy``, ``correct``, ``total``, ``loss``, ``validation_accuracy``, ….
    """
    row = {name.replace("-", "_"): value for name, value in metrics.items()}
    row["accuracy"] = row["correct"] / row["total"]
    if row.get("validation_total"):
        row["validation_accuracy"] = row["validation_correct"] / row["validation_total"]
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
        validation accuracy; None where there is nothing to summarize.
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
    }
