"""What a method writes on the server: its record, and the hooks that it overrides.

`strategies.base.PersonalizedStrategy` calls the hooks. Most methods override `train_payload`
(arrays for one client), `expected_arrays` and `check_reply` (validation of replies), `begin` (the
first state) and `aggregate` (the state after a round).

The state is a value of `strategies.core.state`. A method annotates `state` with its own type, as it
does `settings`. Hooks read it. Only the protocol replaces it, by what the hooks return.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.core.current_round import Round
from strategies.core.declarations import LayerChoice
from strategies.core.method_record import MethodRecord, refuse_old_names
from strategies.core.plan import PlanSettings, RunPlan, Settings, sample_clients
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.server_models import ServerModels
from strategies.core.state import State


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
        """Give a class without a record that of its base class; refuse names of old versions."""
        super().__init_subclass__(**arguments)
        refuse_old_names(cls.__name__, cls.__bases__[0].__name__, vars(cls))
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
