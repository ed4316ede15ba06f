"""Properties that a method declares, so that no other code depends on its name."""

from typing import ClassVar

from strategies.core.evaluations import EvaluationPoint
from strategies.core.metrics import MOVED_PRIVATE, TRAIN_LOSS
from strategies.core.plan import PlanSettings, Settings
from strategies.core.replies import Metric


class MethodProperties:
    """Source and requirements of a method, and the metrics that its clients report."""

    paper: ClassVar[str] = "own"
    """Source of the method, as authors and year."""

    exchanged: ClassVar[str] = ""
    """What clients and server exchange, in a few words, or ``nothing``.

    A node's operator allows kinds of information. What is not said counts as parameters.
    """

    color_family: ClassVar[str] = ""
    """Name of the methods with which it shares a color in figures; empty for an unused color."""

    settings_type: ClassVar[type[Settings]] = Settings
    """Type of the method's settings."""

    train_metrics: ClassVar[tuple[Metric, ...]] = (TRAIN_LOSS, MOVED_PRIVATE)
    """Metrics of a train reply."""

    evaluation_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of an evaluation besides its counts."""

    evaluates_trained_model: ClassVar[bool] = True
    """Whether a client is evaluated with the model that it has just trained.

    In this case train replies carry the counts, and a client that is not sampled keeps its last
    counts.
    """

    second_evaluation: ClassVar[EvaluationPoint] = ""
    """When the model of a client is counted a second time in a round.

    ``trained`` is after local training, for methods that evaluate the model that the server sends
    afterwards. ``received`` is before it, for methods that evaluate the trained model. Empty where
    clients are not sent a model that replaces theirs.
    """

    needs_one_model: ClassVar[bool] = False
    """Whether all clients need the same architecture."""

    averages_parameters: ClassVar[bool] = False
    """Whether the server averages or mixes the clients' parameters, so that `mixing` applies."""

    needs_public_data: ClassVar[bool] = False
    """Whether clients predict on public data."""

    distills_on_server: ClassVar[bool] = False
    """Whether the server, not the clients, predicts on public data."""

    needs_validation_data: ClassVar[bool] = False
    """Whether clients need a validation split."""

    dp_sgd: ClassVar[bool] = False
    """Whether DP-SGD covers all that leaves its clients besides the results of evaluations.

    That is so if clients see their training samples in local training by the plain loop alone. A
    derived class says so itself.
    """

    client_dp: ClassVar[bool] = False
    """Whether clients learn of each other by the mean of their models alone, to which noise for
    differential privacy of clients can be added. A derived class says so itself.
    """

    takes_estimators: ClassVar[bool] = False
    """Whether its clients may have models that are no networks, with ``fit`` and ``predict_proba``.

    That is so if its client trains by `train_locally`, `distill` and `co_distill` alone. A derived
    class says so itself.
    """

    needs_plain_descent: ClassVar[bool] = False
    """Whether the method is derived for stochastic gradient descent only."""

    keeps_global_models: ClassVar[bool] = False
    """Whether the run directory has the global model of each round.

    A finished run then receives newcomers without further rounds.
    """

    trains_new_clients: ClassVar[bool] = True
    """Whether new clients train before they are evaluated.

    False for methods whose clients keep no model and are evaluated with the one they receive.
    """

    @classmethod
    def declares(cls, name: str) -> bool:
        """Return whether the class itself declares a property to be true, not one of its bases."""
        return bool(vars(cls).get(name))

    @classmethod
    def spanning_setting(cls, plan: PlanSettings, settings: Settings) -> str:
        """Return a setting that makes rounds depend on their planned number; empty for none.

        A run with such a setting cannot be extended.
        """
        return ""
