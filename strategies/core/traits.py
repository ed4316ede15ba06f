"""What a method says of itself, so that whoever runs it need not know it by name."""

from typing import ClassVar

from strategies.core.metrics import MOVED_PRIVATE, TRAIN_LOSS
from strategies.core.plan import PlanSettings, Settings
from strategies.core.replies import Metric


class Traits:
    """What a method needs of clients, data and server, and what its clients report."""

    settings_type: ClassVar[type[Settings]] = Settings
    """Type of the method's settings."""

    train_metrics: ClassVar[tuple[Metric, ...]] = (TRAIN_LOSS, MOVED_PRIVATE)
    """What clients report with a train reply."""

    evaluation_metrics: ClassVar[tuple[Metric, ...]] = ()
    """What clients report with an evaluation besides its counts."""

    evaluates_trained_model: ClassVar[bool] = True
    """Whether a client is evaluated with the model that it has just trained.

    Then the counts travel with its train reply, and a client that is not sampled keeps its last
    ones.
    """

    needs_one_model: ClassVar[bool] = False
    """Whether all clients need the same architecture."""

    needs_public_data: ClassVar[bool] = False
    """Whether clients predict on public data."""

    distils_on_server: ClassVar[bool] = False
    """Whether the server predicts on public data; clients need none of it for that."""

    needs_validation_data: ClassVar[bool] = False
    """Whether clients need a validation split."""

    needs_plain_descent: ClassVar[bool] = False
    """Whether the method's formulas hold for stochastic gradient descent alone."""

    keeps_global_models: ClassVar[bool] = False
    """Whether each round's global model belongs in the run directory."""

    trains_new_clients: ClassVar[bool] = True
    """Whether a client that comes after the training trains before it is evaluated.

    Not where a client keeps nothing of its training: it is evaluated with what it is sent.
    """

    @classmethod
    def spanning_setting(cls, plan: PlanSettings, settings: Settings) -> str:
        """Name a setting by which rounds depend on how many are planned, so that none can follow.

        Empty where there is none.
        """
        return ""
