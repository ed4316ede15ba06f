"""What a method writes on the server: its record, and the hooks that it overrides.

`strategies.base.PersonalizedStrategy` calls the hooks. Most methods override `train_payload`
(arrays for one client), `expected_arrays` and `check_reply` (validation of replies), `begin` (the
first state) and `aggregate` (the state after a round).

The state is a value of `strategies.core.state`. A method annotates `state` with its own type, as it
does `settings`. Hooks read it. Only the protocol replaces it, by what the hooks return.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from strategies.core.declarations import LayerChoice
from strategies.core.method_record import MethodRecord, refuse_near_names, refuse_old_names
from strategies.core.plan import PlanSettings, RunPlan, Settings, sample_clients
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.rounds import Round
from strategies.core.state import State


class ServerModels(Protocol):
    """The models of a run on the server; strategies handle them as vectors by kind."""

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct architectures of the run."""

    @property
    def feature_width(self) -> int:
        """Number of features that enter the head, for methods that need the same of all clients."""

    def public_subset(self, server_round: int) -> NDArray[Any]:
        """Return the positions of a round's samples in the public set, (P,), ascending."""

    def narrowest(self, shared: str) -> int:
        """Return the smallest number of features of the run's models and of a shared one."""

    def initial(self, number: int = 0, name: str = "") -> Arrays:
        """Return fresh weights; draw 0 of the first architecture is the initial global model."""

    def initial_shared(self, name: str = "", width: int = 0) -> Arrays:
        """Return fresh weights of a shared model, drawn apart, with a projection to any `width`."""

    def layout(
        self, name: str = "", layers: LayerChoice = slice(None)
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return kind and shape of an architecture's arrays by name, in the order of its vectors.

        Without a name it is the first of the run; `layers` are those that are sent.
        """

    def predict(self, name: str, model: Arrays, server_round: int) -> NDArray[Any]:
        """Return a model's logits on the server's public samples of a round, (P, K)."""

    def fit(
        self,
        name: str,
        model: Arrays,
        samples: NDArray[Any],
        teacher: NDArray[Any],
        server_round: int,
        *,
        steps: int,
        batch_size: int,
        learning_rate: float,
        optimizer: str = "adam",
    ) -> dict[str, NDArray[Any]]:
        """Train a model towards a teacher (n, K), rows on the simplex, on public samples (n,).

        Return the trained model, or the initial one if training diverged. The round determines the
        batches.
        """

    def train_feature_generator(
        self,
        generator: Arrays,
        models: Sequence[Arrays],
        shares: NDArray[Any],
        class_shares: NDArray[Any],
        server_round: int,
        *,
        diversity: float,
        steps: int,
        batch_size: int,
        learning_rate: float,
    ) -> dict[str, NDArray[Any]]:
        """Train FedGen's generator against the heads of R models; see `strategies.fedgen`.

        `shares` (R, K) weigh the models for each class, classes are drawn by `class_shares` (K,),
        and `diversity` weighs that of features. Return the given generator if training diverged.
        """

    def train_prototypes(
        self,
        generator: Arrays,
        sent: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        margin: float,
        epochs: int,
        learning_rate: float,
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Train FedTGP's generator on the prototypes (M, d) and classes (M,) that clients sent.

        One step of gradient descent for each client and epoch. Return the generator, and the
        prototypes that it generates, (K, d).
        """


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the run records of a method after a round."""

    columns: Mapping[str, float] = field(default_factory=dict)
    """Further columns of the round's row."""
    matrices: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Matrices by name, such as ``coefficients`` (N, N)."""
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows for further tables of the run, each with ``round`` and ``partition_id``."""


class Method:
    """A method with the defaults of all hooks, which exchange nothing."""

    record: ClassVar[MethodRecord] = MethodRecord()
    """What the method declares about itself; by default, what its base class declares."""

    plan: RunPlan
    """Clients, rounds, sampling and seed."""
    settings: Settings
    """The method's own settings."""
    state: State | None
    """What survives a round; None before the first."""
    server_models: ServerModels | None
    """The models of the run, for methods that use models on the server."""
    round: Round
    """The round that is running: its clients, and further messages to them."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give a class without a record that of its base class; refuse old and mistyped names."""
        super().__init_subclass__(**arguments)
        refuse_old_names(cls.__name__, cls.__bases__[0].__name__, vars(cls))
        refuse_near_names(cls)
        if "record" not in vars(cls):
            cls.record = cls.record.derived()

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse impossible combinations of settings.

        Raises
        ------
        ImpossiblePlanError
            With one sentence that says what is allowed.
        """

    @classmethod
    def spanning_setting(cls, plan: PlanSettings, settings: Settings) -> str:
        """Return a setting that makes rounds depend on their planned number; empty for none.

        A run with such a setting cannot be extended.
        """
        return ""

    @classmethod
    def shared_layers(cls, settings: Settings) -> LayerChoice:
        """Return which layers of a model are sent; by default all.

        Server and clients use it, so that their vectors have the same length.
        """
        return slice(None)

    def begin(self, initial: Arrays) -> State:
        """Return the state before the first round.

        Parameters
        ----------
        initial : mapping of str to ndarray
            The parts of the initial global model; empty for a method without one.
        """
        return State()

    def with_more_clients(self) -> State:
        """Return a restored state for `num_clients`, which may be more than when it was saved."""
        return self.state or State()

    def state_before_training(self, server_round: int, sampled: Sequence[int]) -> State:
        """Return the state with which the training messages of a round are sent."""
        return self.state or State()

    def sample(self, server_round: int, candidates: Sequence[int]) -> list[int]:
        """Return the partition-ids that train in this round, in ascending order."""
        return sample_clients(candidates, self.plan.sample_size, self.plan.seed, server_round)

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Return the arrays that one client receives before training."""
        return {}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        """Return the specification of every array of a train reply."""
        return {}

    def check_reply(self, reply: Reply) -> None:
        """Refuse a train reply with invalid values.

        Raises
        ------
        InvalidReplyError, NotOnSimplexError
            With the reason; the client is dropped from the round.
        """

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Limit the influence of single replies before they are aggregated."""
        return replies

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> State:
        """Return the state after a round, from its valid replies by ascending partition-id."""
        return self.state or State()

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Return the arrays that one client receives before evaluation."""
        return {}

    def last_distillation(self, partition_id: int) -> Arrays:
        """Return what one client would distill in the round after the last; empty for nothing.

        It is sent if the method evaluates models after their distillation.
        """
        return {}

    def global_model(self) -> Arrays:
        """Return the parts of the global model, if the method has one."""
        return {}

    def results(self) -> Results:
        """Return what the run records of the method after a round."""
        return Results()

    # ---- New clients: called on a copy of the server after the training -------------------

    def train_new_clients(self, step: int, new_clients: Sequence[int]) -> dict[int, Reply]:
        """Train new clients for one round, counted from 1, and return the valid replies."""
        self.state = self.state_before_training(step, new_clients)
        replies = self.round.ask(
            "train",
            {n: self.train_payload(step, n) for n in new_clients},
            lambda n: self.expected_arrays(step, n),
            self.check_reply,
            self.record.train_metrics,
        )
        if replies:
            self.state = self.with_new_clients(step, replies)
        return replies

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> State:
        """Return the state after a round of new clients; each is changed by its own reply alone."""
        return self.state or State()

    # ---- Tools ----------------------------------------------------------------------------

    def weights_of(self, partition_ids: Iterable[int]) -> NDArray[np.float64]:
        """Return the weights of some clients in an average of parameters, (R,).

        They are the clients' sizes, or all 1 with ``weighting = "uniform"`` or a robust average.
        """
        sizes, plan = self.round.sizes(partition_ids), self.plan
        by_size = plan.mixing == "mean" and plan.weighting == "samples"
        return sizes if by_size else np.ones_like(sizes)
