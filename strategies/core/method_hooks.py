"""The hooks of a method on the server: what it may override.

Most methods override `MethodHooks.train_payload` (arrays for one client), `expected_arrays` and
`check_reply` (validation of replies), `begin` (the first state) and `aggregate` (the state after a
round). `strategies.base.PersonalizedStrategy` calls the hooks.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from strategies.core.layer_choice import LayerChoice
from strategies.core.method_record import MethodRecord, refuse_facts
from strategies.core.plan import PlanSettings, RunPlan, Settings, sample_clients
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.state import State


class MethodHooks:
    """The hooks with their defaults, which exchange nothing.

    Attributes
    ----------
    plan : RunPlan
        Clients, rounds, sampling and seed.
    state : State or None
        What survives a round; None before the first.
    """

    record: ClassVar[MethodRecord] = MethodRecord()
    """What the method declares about itself; by default, what its base class declares."""

    plan: RunPlan
    state: State | None

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give a class without a record that of its base class."""
        super().__init_subclass__(**arguments)
        refuse_facts(cls.__name__, vars(cls))
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

    def global_model(self) -> Arrays:
        """Return the parts of the global model, if the method has one."""
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
