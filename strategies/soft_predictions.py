"""What methods share whose clients exchange soft predictions: the wire, privacy, mixing.

Predictions may be clipped and noised before they leave a client (`strategies.core.privacy`),
rounded to fewer bytes on the wire (`strategies.core.wire`), and mixed by a mean or, against
clients that lie, by a median (`strategies.core.simplex`). The defaults do none of that.
"""

from collections.abc import Mapping, Sequence
from logging import INFO
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.supercore import log
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import PersonalizedStrategy
from strategies.core.plan import ImpossiblePlanError, RunPlan, Settings
from strategies.core.privacy import privacy_spent
from strategies.core.replies import Arrays, Due, InvalidReplyError, Reply
from strategies.core.simplex import MIXINGS, check_simplex
from strategies.core.wire import NUMBER_FORMATS, NumberFormat

PREDICTIONS = "predictions"
"""Name of a reply's array of soft predictions."""


class SoftPredictionSettings(Settings):
    """Settings of all methods that exchange soft predictions.

    Attributes
    ----------
    number_format : str
        ``float32``, ``float16`` or ``int8``: predictions and teachers on the wire.
    mixing : str
        ``mean``, or ``median`` against clients that send well-formed lies.
    clip_norm : float
        Largest distance, in L2 over all P·K entries, of a client's predictions from uniform
        ones; 0 for no bound.
    noise_multiplier : float
        Standard deviation of the Gaussian noise on predictions as a multiple of their
        sensitivity ``2 * clip_norm``; 0 for no noise.
    noise_seed : int
        -1 draws the noise from the operating system, secret and new each time. Any other
        makes an experiment repeatable, and lets whoever knows it take the noise off again.
    delta : float
        The delta at which the privacy spent is reported.
    """

    number_format: Literal["float32", "float16", "int8"] = "float32"
    mixing: Literal["mean", "median"] = "mean"
    clip_norm: float = Field(default=0.0, ge=0)
    noise_multiplier: float = Field(default=0.0, ge=0)
    noise_seed: int = Field(default=-1, ge=-1)
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @property
    def wire(self) -> NumberFormat:
        """The number format itself."""
        return NUMBER_FORMATS[self.number_format]


class DistillationSettings(SoftPredictionSettings):
    """Settings of methods whose clients distil a teacher, as `KTpFLClient` does.

    Attributes
    ----------
    temperature : float
        T of the soft predictions.
    distillation_epochs : int
        Epochs over the public samples towards the teacher.
    distillation_learning_rate : float
        Step size on public samples.
    public_batch_size : int
        Batch size on public samples.
    t_squared : bool
        Whether the distillation loss is multiplied by T² (KT-pFL's Eq. 6 has no such factor).
    """

    temperature: float = Field(default=1.0, gt=0)
    distillation_epochs: int = Field(default=2, ge=0)
    distillation_learning_rate: float = Field(default=0.05, gt=0)
    public_batch_size: int = Field(default=64, ge=1)
    t_squared: bool = True


class SoftPredictionStrategy(PersonalizedStrategy):
    """A strategy whose clients reply with soft predictions on public samples, and nothing else.

    Models stay with the clients, so they may differ.

    Attributes
    ----------
    releases : ndarray
        Shape (N,), how often each client was asked for predictions.
    """

    settings_type = SoftPredictionSettings
    settings: SoftPredictionSettings
    needs_public_data = True
    kept: ClassVar[tuple[str, ...]] = ("releases",)
    releases: NDArray[np.int64]

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse noise without a bound on what it hides."""
        own = cls.settings_type.model_validate(settings)
        if own.noise_multiplier and not own.clip_norm:
            raise ImpossiblePlanError(
                f"{own.table}.noise-multiplier = {own.noise_multiplier:g} needs a "
                f"{own.table}.clip-norm above 0: noise hides no more than what is bounded."
            )

    def begin(self, initial: Arrays) -> None:
        """Start with nothing released."""
        self.releases = np.zeros(self.plan.num_clients, dtype=np.int64)

    def before_asking(self, sampled: Sequence[int]) -> None:
        """Count the releases before clients are asked: each may release, heard or not.

        With noise the count is written down at once, so that a round that is cut off and
        repeated counts twice.
        """
        self.releases[list(sampled)] += 1
        if self.settings.noise_multiplier and self.observer is not None:
            self.observer.about_to_ask({"releases": self.releases})

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, Due]:
        """Ask for soft predictions, (P, K)."""
        shape = (self.plan.public_size, self.plan.num_classes)
        return self.settings.wire.due(PREDICTIONS, shape)

    def check_reply(self, reply: Reply) -> None:
        """Refuse predictions whose rows are off the simplex."""
        wire = self.settings.wire
        predictions = wire.decode(PREDICTIONS, reply.arrays)
        if not np.isfinite(predictions).all():
            raise InvalidReplyError(f"{PREDICTIONS} spans a range that is too wide")
        check_simplex(predictions, PREDICTIONS, wire.tolerance(self.plan.num_classes))

    def stack_predictions(self, replies: Mapping[int, Reply]) -> NDArray[np.float32]:
        """Return the repliers' soft predictions, shape (R, P, K), by ascending partition-id."""
        wire = self.settings.wire
        return np.stack([wire.probabilities(PREDICTIONS, r.arrays) for r in replies.values()])

    def mix(self, weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
        """Mix predictions as the settings ask: (N, M) and (M, P, K) to (N, P, K)."""
        return MIXINGS[self.settings.mixing](weights, predictions)

    def round_metrics(self) -> dict[str, float]:
        """Return ``epsilon``, the most privacy that a client has spent, where there is noise."""
        settings = self.settings
        if not settings.noise_multiplier:
            return {}
        releases = int(self.releases.max())
        epsilon = privacy_spent(settings.noise_multiplier, releases, settings.delta)
        log(
            INFO,
            "Privacy spent by a client: epsilon %.3g at delta %.3g, %d releases of predictions",
            epsilon,
            settings.delta,
            releases,
        )
        return {"epsilon": epsilon}
