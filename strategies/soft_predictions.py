"""Base of methods whose clients exchange soft predictions: wire format, privacy, mixing.

Predictions may be clipped and noised before they leave a client (`strategies.core.privacy`),
rounded to fewer bytes on the network (`strategies.core.probabilities`), and mixed by a mean or,
against poisoning, by a median or a trimmed mean (`strategies.core.mixing`). By default none of
this happens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import PersonalizedStrategy
from strategies.core.declarations import Data, of_model
from strategies.core.flower import log
from strategies.core.method_record import Need
from strategies.core.metrics import MOVED_PRIVATE, MOVED_PUBLIC, TRAIN_LOSS
from strategies.core.mixing import MIXINGS
from strategies.core.plan import ImpossiblePlanError, RunPlan, Settings
from strategies.core.privacy import privacy_spent
from strategies.core.probabilities import (
    NUMBER_FORMATS,
    DueProbabilities,
    NumberFormat,
    normalized_rows,
)
from strategies.core.replies import Arrays, ExpectedArray, Metric, Reply
from strategies.core.settings_groups import (
    ANY_ON_NODES,
    DEFAULT_ON_NODES,
    OnNodes,
    SearchRange,
    zero_or_at_least,
)
from strategies.core.state import State, padded
from strategies.method import Results

PREDICTIONS = "predictions"  # name of the array of soft predictions in a reply

DISTILLATION_METRICS = (
    TRAIN_LOSS,
    Metric("distillation-loss", inputs=(Data.PUBLIC,), through_model=True),
    MOVED_PRIVATE,
    MOVED_PUBLIC,
)
"""Metrics of clients that distill a teacher and then train on their own data."""

ASKED = "asked"
"""Name of a message's bit mask: the samples of the round on which to predict; all if absent."""


class SoftPredictionSettings(Settings):
    """Settings of all methods that exchange soft predictions."""

    table = "soft-predictions"
    number_format: Annotated[Literal["float32", "float16", "int8"], ANY_ON_NODES] = "float32"
    """Number format of predictions and teachers on the network."""
    mixing: Annotated[Literal["mean", "median", "trimmed-mean"], ANY_ON_NODES] = "mean"
    """``mean``, or ``median`` or ``trimmed-mean`` for robustness against poisoned predictions."""
    clip_norm: Annotated[float, zero_or_at_least(1e-6), ANY_ON_NODES] = Field(default=0.0, ge=0)
    """Largest L2 distance, over all P·K entries, of a client's predictions from uniform
    predictions; 0 for no clipping, else at least 1e-6, so that rounding does not exceed it."""
    noise_multiplier: Annotated[float, ANY_ON_NODES] = Field(default=0.0, ge=0, le=1e4)
    """Standard deviation of the Gaussian noise on predictions, as a multiple of their sensitivity
    ``2 * clip_norm``; 0 for no noise."""
    noise_seed: Annotated[int, DEFAULT_ON_NODES] = Field(default=-1, ge=-1)
    """-1 draws secret noise from the operating system. Any other seed makes an experiment
    repeatable, but whoever knows the seed can remove the noise."""
    delta: Annotated[float, ANY_ON_NODES] = Field(default=1e-5, gt=0, lt=1)
    """delta of (epsilon, delta)-differential privacy, at which epsilon is reported."""

    @property
    def wire(self) -> NumberFormat:
        """The number format object."""
        return NUMBER_FORMATS[self.number_format]

    @property
    def is_private(self) -> bool:
        """Whether what clients send has noise for differential privacy."""
        return bool(self.noise_multiplier)

    def privacy_spent(self, releases: int) -> tuple[float, float]:
        """Return epsilon and delta of a client whose predictions were sent this often."""
        return privacy_spent(self.noise_multiplier, releases, self.delta), self.delta


class DistillationSettings(SoftPredictionSettings):
    """Settings of methods whose clients distill a teacher, as `KTpFLClient` does."""

    temperature: Annotated[float, OnNodes(0.1, 100)] = Field(default=1.0, gt=0)
    """T of the soft predictions."""
    distillation_epochs: Annotated[int, OnNodes(0, 100)] = Field(default=2, ge=0)
    """Epochs of distillation on the public samples."""
    distillation_learning_rate: Annotated[
        float, SearchRange(0.005, 0.3, log=True), OnNodes(0, 1)
    ] = Field(default=0.05, gt=0)
    """Step size of the distillation; it follows `learning_rate_schedule`."""
    public_batch_size: Annotated[int, ANY_ON_NODES] = Field(default=64, ge=1)
    """Batch size of the distillation."""
    t_squared: Annotated[bool, ANY_ON_NODES] = True
    """Whether the distillation loss is multiplied by T²; Eq. 6 of KT-pFL has no such factor."""


def refuse_options(settings: SoftPredictionSettings, reason: str, **allowed: str | float) -> None:
    """Refuse options of soft predictions with another value than the one `allowed`."""
    for name, value in allowed.items():
        if (given := getattr(settings, name)) != value:
            raise ImpossiblePlanError(
                f"{settings.key_of(name)} = {given} is not possible, {reason}: set it to {value}."
            )


@dataclass(frozen=True)
class SoftPredictionState(State):
    """What clients learn from, and how often they were asked."""

    releases: NDArray[np.int64]
    """Shape (N,) or longer, number of requests for predictions per client."""
    teachers: NDArray[Any]
    """Teachers or centroids on the public samples of the last round, shape (..., P, K); empty
    before the first."""


class SoftPredictionStrategy(PersonalizedStrategy):
    """A strategy whose clients reply with soft predictions on public samples, and nothing else.

    Models stay on the clients, so they may differ in architecture. A method overrides
    `aggregate`, which computes the teachers of the next round from the predictions of a round.
    """

    record = PersonalizedStrategy.record.derived(
        exchanged="soft predictions",
        needs=(Need.PUBLIC_DATA,),
        settings_type=SoftPredictionSettings,
        # A quantized array has another one beside it, with its range.
        sends=(of_model(f"{PREDICTIONS}*", Data.PUBLIC),),
    )
    settings: SoftPredictionSettings
    state: SoftPredictionState

    teacher_name: ClassVar[str] = "teacher"
    """Name of the array of teachers in messages."""

    teachers_are_personal: ClassVar[bool] = False
    """Whether each client has its own teachers, (N, P, K), or all receive the same."""

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        own = SoftPredictionSettings.model_validate(settings)
        if own.noise_multiplier and not own.clip_norm:
            raise ImpossiblePlanError(
                f"{own.key_of('noise_multiplier')} = {own.noise_multiplier:g} needs "
                f"{own.key_of('clip_norm')} above 0, since noise protects only clipped predictions."
            )

    def begin(self, initial: Arrays) -> SoftPredictionState:
        plan = self.plan
        return SoftPredictionState(
            releases=np.zeros(plan.num_clients, dtype=np.int64),
            teachers=np.empty((0, plan.public_size, plan.num_classes), dtype=np.float32),
        )

    def with_more_clients(self) -> SoftPredictionState:
        """Add clients without releases.

        Releases to clients of a failed attempt with more clients stay counted.
        """
        state, size = self.state, self.plan.num_clients
        counted = max(size, len(state.releases))
        return replace(state, releases=padded(state.releases, counted))

    def teacher_of(self, partition_id: int) -> NDArray[Any]:
        """Return the personal teacher of one client, (P, K)."""
        teacher: NDArray[Any] = self.state.teachers[partition_id]
        return teacher

    # ---- Hooks of every strategy -----------------------------------------------------

    def state_before_training(
        self, server_round: int, sampled: Sequence[int]
    ) -> SoftPredictionState:
        """Count the releases before clients are asked, whether or not their replies arrive.

        With noise the count is saved at once, so that a round that is interrupted and repeated
        counts twice.
        """
        asked = [n for n in sampled if self.asked(server_round, n).any()]
        if not asked:
            return self.state
        releases = self.state.releases.copy()
        releases[asked] += 1
        if self.settings.is_private:
            self.round.save({"releases": releases})
        return replace(self.state, releases=releases)

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the last teachers, and which samples to predict on unless all.

        A new client receives teachers from its second round on, as in training.
        """
        asked = self._asking(self.asked(server_round, partition_id))
        begins = server_round == 1 and partition_id in self.round.new
        return {**({} if begins else self.teachers_for(partition_id)), **asked}

    def last_distillation(self, partition_id: int) -> Arrays:
        """Send the teachers of the last round, if the method evaluates what they teach."""
        return self.teachers_for(partition_id) if "distilled" in self.record.evaluates else {}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        """Require soft predictions, (A, K), on the requested samples."""
        num_asked = int(self.asked(server_round, partition_id).sum())
        if not num_asked:
            return {}
        shape = num_asked, self.plan.num_classes
        return {PREDICTIONS: DueProbabilities(shape, number_format=self.settings.wire)}

    def takes_late_reply(self, partition_id: int) -> bool:
        """Return whether predictions of an earlier round are on the samples of this one."""
        return self.round.clients[partition_id].public_size == self.plan.public_size

    # ---- Which samples a message is about --------------------------------------------

    def asked(self, server_round: int, partition_id: int) -> NDArray[np.bool_]:
        """Return on which of a round's public samples a client predicts, shape (P,).

        A new client predicts on none if all clients receive the same teachers.
        """
        if partition_id in self.round.new and not self.teachers_are_personal:
            return np.zeros(self.plan.public_size, dtype=np.bool_)
        return np.ones(self.plan.public_size, dtype=np.bool_)

    def teachers_for(self, partition_id: int) -> Arrays:
        """Return the arrays of the last teachers of one client; empty before there are any."""
        teachers, wire = self.state.teachers, self.settings.wire
        if not teachers.size:
            return {}
        if self.teachers_are_personal:
            return wire.encode(self.teacher_name, self.teacher_of(partition_id))
        return self.round.once(self.teacher_name, lambda: wire.encode(self.teacher_name, teachers))

    def _asking(self, mask: NDArray[np.bool_]) -> Arrays:
        """Encode on which samples to predict; empty if on all."""
        if mask.all():
            return {}
        return self.round.once(mask.tobytes(), lambda: {ASKED: np.packbits(mask)})

    # ---- Tools for methods -----------------------------------------------------------

    def stack_predictions(self, replies: Mapping[int, Reply]) -> NDArray[np.float32]:
        """Return the repliers' soft predictions, shape (R, A, K), by ascending partition-id."""
        predictions = np.stack([reply.arrays[PREDICTIONS] for reply in replies.values()])
        predictions.flags.writeable = False  # teachers are mixed from them, whatever a rule does
        return predictions

    def mix(self, weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
        """Mix predictions (M, P, K) to (N, P, K) by weights (N, M) and the configured rule."""
        mixed = MIXINGS[self.settings.mixing](weights, predictions)
        return mixed if self.settings.mixing == "mean" else normalized_rows(mixed)

    def results(self) -> Results:
        """Return ``epsilon``, the largest privacy loss of a client, if there is noise."""
        if not self.settings.is_private:
            return Results()
        releases = int(self.state.releases.max())
        epsilon, delta = self.settings.privacy_spent(releases)
        message = "Privacy spent per client: epsilon %.3g at delta %.3g after %d releases"
        log(INFO, message, epsilon, delta, releases)
        return Results(columns={"epsilon": epsilon})
