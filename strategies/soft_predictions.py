"""Base of methods whose clients exchange soft predictions: wire format, privacy, mixing.

Predictions may be clipped and noised before they leave a client (`strategies.core.privacy`),
rounded to fewer bytes on the network (`strategies.core.wire`), and mixed by a mean or, against
poisoning, by a median or a trimmed mean (`strategies.core.mixing`). Teachers on a public sample may
be cached for some rounds, in which nothing about the sample is sent (`strategies.core.caching`). By
default none of this happens.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from logging import INFO
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import PersonalizedStrategy
from strategies.core.caching import ASKED, TAUGHT, are_due, packed
from strategies.core.flower import log
from strategies.core.metrics import MOVED_PRIVATE, MOVED_PUBLIC, TRAIN_LOSS
from strategies.core.mixing import MIXINGS
from strategies.core.new_clients import padded, with_means
from strategies.core.plan import ImpossiblePlanError, RunPlan, Settings
from strategies.core.privacy import privacy_spent
from strategies.core.replies import Arrays, Due, InvalidReplyError, Metric, Reply
from strategies.core.search import SearchRange
from strategies.core.simplex import check_simplex, normalized_rows
from strategies.core.wire import NUMBER_FORMATS, NumberFormat

PREDICTIONS = "predictions"
"""Name of the array of soft predictions in a reply."""

DISTILLATION_METRICS = (TRAIN_LOSS, Metric("distillation-loss"), MOVED_PRIVATE, MOVED_PUBLIC)
"""Metrics of clients that distill a teacher and then train on their own data."""

FIXED_SUBSET = 0
"""The round that draws the public samples of methods with fixed samples."""


class SoftPredictionSettings(Settings):
    """Settings of all methods that exchange soft predictions.

    Attributes
    ----------
    number_format : str
        Number format of predictions and teachers on the network.
    mixing : str
        ``mean``, or ``median`` or ``trimmed-mean`` for robustness against poisoned predictions.
    clip_norm : float
        Largest L2 distance, over all P·K entries, of a client's predictions from uniform
        predictions; 0 for no clipping.
    noise_multiplier : float
        Standard deviation of the Gaussian noise on predictions, as a multiple of their
        sensitivity ``2 * clip_norm``; 0 for no noise.
    noise_seed : int
        -1 draws secret noise from the operating system. Any other seed makes an experiment
        repeatable, but whoever knows the seed can remove the noise.
    delta : float
        delta of (epsilon, delta)-differential privacy, at which epsilon is reported.
    cache_rounds : int
        Number of rounds for which the teacher on a public sample is reused before clients are
        asked about the sample again, as in SCARLET; 0 asks in every round.
    """

    number_format: Literal["float32", "float16", "int8"] = "float32"
    mixing: Literal["mean", "median", "trimmed-mean"] = "mean"
    clip_norm: float = Field(default=0.0, ge=0)
    noise_multiplier: float = Field(default=0.0, ge=0)
    noise_seed: int = Field(default=-1, ge=-1)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    cache_rounds: int = Field(default=0, ge=0)

    @property
    def wire(self) -> NumberFormat:
        """The number format object."""
        return NUMBER_FORMATS[self.number_format]


class DistillationSettings(SoftPredictionSettings):
    """Settings of methods whose clients distill a teacher, as `KTpFLClient` does.

    Attributes
    ----------
    temperature : float
        T of the soft predictions.
    distillation_epochs : int
        Epochs of distillation on the public samples.
    distillation_learning_rate : float
        Step size of the distillation.
    public_batch_size : int
        Batch size of the distillation.
    t_squared : bool
        Whether the distillation loss is multiplied by T²; Eq. 6 of KT-pFL has no such factor.
    """

    temperature: float = Field(default=1.0, gt=0)
    distillation_epochs: int = Field(default=2, ge=0)
    distillation_learning_rate: Annotated[float, SearchRange(0.005, 0.3, log=True)] = Field(
        default=0.05, gt=0
    )
    public_batch_size: int = Field(default=64, ge=1)
    t_squared: bool = True


class SoftPredictionStrategy(PersonalizedStrategy):
    """A strategy whose clients reply with soft predictions on public samples, and nothing else.

    Models stay on the clients, so they may differ in architecture. A method overrides `teach`,
    which computes the teachers of the next round from the predictions of a round.

    Attributes
    ----------
    releases : ndarray
        Shape (N,), number of requests for predictions per client.
    lessons : ndarray
        Teachers or centroids on the public samples of the last round, shape (..., P, K); empty
        before the first.
    cache : dict of str to ndarray
        Empty without `cache_rounds`. Otherwise for each sample of the public pool: its ``lessons``
        (..., pool, K), the round in which they were ``made`` (pool,), and the round of the lessons
        that each client ``holds`` (N, pool), both 0 for none.
    """

    exchanged = "soft predictions"
    settings_type = SoftPredictionSettings
    settings: SoftPredictionSettings
    needs_public_data = True
    kept: ClassVar[tuple[str, ...]] = ("releases", "lessons", "cache")
    releases: NDArray[np.int64]
    lessons: NDArray[Any]
    cache: dict[str, NDArray[Any]]

    lesson_name: ClassVar[str] = "teacher"
    """Name of the array of lessons in messages."""

    lessons_are_personal: ClassVar[bool] = False
    """Whether each client has its own lessons, (N, P, K), or all receive the same."""

    draws_samples_anew: ClassVar[bool] = True
    """Whether each round draws new public samples."""

    asks_for_predictions = True
    """Whether clients are asked for predictions; False for new clients with common lessons."""

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse noise without clipping."""
        own = cls.settings_type.model_validate(settings)
        if own.noise_multiplier and not own.clip_norm:
            raise ImpossiblePlanError(
                f"{own.table}.noise-multiplier = {own.noise_multiplier:g} needs "
                f"{own.table}.clip-norm above 0, since noise protects only clipped predictions."
            )

    def begin(self, initial: Arrays) -> None:
        """Start without releases and lessons."""
        plan = self.plan
        self.releases = np.zeros(plan.num_clients, dtype=np.int64)
        self.lessons = np.empty((0, plan.public_size, plan.num_classes), dtype=np.float32)
        self.cache = {}
        self._sampled: Sequence[int] = ()
        # Arrays for several clients are one object, so that traffic counts them once.
        self._encoded: dict[Hashable, Arrays] = {}
        if self.settings.cache_rounds:
            pool = self.server_models.public_pool_size
            self.cache["made"] = np.zeros(pool, dtype=np.int32)
            self.cache["holds"] = np.zeros((plan.num_clients, pool), dtype=np.int32)

    def grow(self) -> None:
        """Add clients without releases; personal lessons of theirs are the mean of the others'."""
        size = self.plan.num_clients
        self.releases = padded(self.releases, size)
        if self.lessons_are_personal:
            self.lessons = with_means(self.lessons, size)
        if not self.cache:
            return
        self.cache["holds"] = padded(self.cache["holds"], size)
        if self.lessons_are_personal and "lessons" in self.cache:
            self.cache["lessons"] = with_means(self.cache["lessons"], size)

    # ---- Hook of methods -------------------------------------------------------------

    def teach(self, server_round: int, replies: dict[int, Reply]) -> NDArray[Any]:
        """Return lessons, (..., A, K), from predictions on the A requested samples."""
        raise NotImplementedError

    # ---- Hooks of every strategy -----------------------------------------------------

    def before_asking(self, server_round: int, sampled: Sequence[int]) -> None:
        """Count the releases before clients are asked, whether or not their replies arrive.

        With noise the count is saved at once, so that a round that is interrupted and repeated
        counts twice.
        """
        self._sampled = sampled
        if not self.asked(server_round).any():
            return
        self.releases[list(sampled)] += 1
        if self.settings.noise_multiplier:
            self.observer.about_to_ask({"releases": self.releases})

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the last lessons, and which samples to predict on unless all."""
        asked = self._bits(ASKED, self.asked(server_round))
        if not self.lessons.size:
            return asked
        missing = self.missing(server_round, partition_id)
        if self.lessons_are_personal:
            return {**self._encode(self.lessons[partition_id], missing), **asked}
        key = missing.tobytes()
        return {**self._once(key, lambda: self._encode(self.lessons, missing)), **asked}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, Due]:
        """Require soft predictions, (A, K), on the requested samples."""
        num_asked = int(self.asked(server_round).sum())
        if not num_asked:
            return {}
        return self.settings.wire.due(PREDICTIONS, (num_asked, self.plan.num_classes))

    def check_reply(self, reply: Reply) -> None:
        """Refuse predictions that are not probability distributions."""
        if not reply.arrays:
            return
        wire = self.settings.wire
        predictions = wire.decode(PREDICTIONS, reply.arrays)
        if not np.isfinite(predictions).all():
            raise InvalidReplyError(f"{PREDICTIONS} has too wide a range")
        check_simplex(predictions, PREDICTIONS, wire.tolerance(self.plan.num_classes))

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Compute lessons on the requested samples; use cached lessons for the others."""
        self._encoded.clear()
        self._note_holders(server_round, replies)
        asked = self.asked(server_round)
        if not self.cache:
            self.lessons = self.teach(server_round, replies)
            return
        if asked.any():
            self._shelve(server_round, asked, self.teach(server_round, replies))
        self.lessons = self.cache["lessons"][..., self._subset(server_round), :]

    # ---- New clients -----------------------------------------------------------------

    def before_new_clients(self) -> None:
        """Turn off the cache, and use the public samples of the last round.

        Their predictions are not needed if all clients receive the same lessons.
        """
        self.cache, self._encoded = {}, {}
        self.asks_for_predictions = self.lessons_are_personal

    def new_client_payload(self, step: int, partition_id: int) -> Arrays:
        """Send lessons from the second round on, as in training."""
        if step == 1:
            return self._bits(ASKED, self.asked(step))
        return self.train_payload(step, partition_id)

    # ---- Which lessons there are, and who holds them ---------------------------------

    def asked(self, server_round: int) -> NDArray[np.bool_]:
        """Return which of a round's public samples clients predict on, shape (P,)."""
        if not self.asks_for_predictions:
            return np.zeros(self.plan.public_size, dtype=np.bool_)
        if not self.cache:
            return np.ones(self.plan.public_size, dtype=np.bool_)
        made = self.cache["made"][self._subset(server_round)]
        return are_due(made, server_round, self.settings.cache_rounds)

    def missing(self, server_round: int, partition_id: int) -> NDArray[np.bool_]:
        """Return for which of the last round's samples a client lacks the teacher, (P,)."""
        if not self.cache:
            return np.ones(self.plan.public_size, dtype=np.bool_)
        subset = self._subset(server_round - 1)
        held: NDArray[np.int32] = self.cache["holds"][partition_id, subset]
        return held != self.cache["made"][subset]

    def _subset(self, server_round: int) -> NDArray[np.int64]:
        """Return the positions of a round's public samples in the pool, (P,)."""
        drawn_in = server_round if self.draws_samples_anew else FIXED_SUBSET
        return self.server_models.public_subset(drawn_in)

    def _shelve(self, server_round: int, asked: NDArray[np.bool_], lessons: NDArray[Any]) -> None:
        """Cache new lessons, (..., A, K), of some samples of the pool."""
        samples, made = self._subset(server_round)[asked], self.cache["made"]
        shape = (*lessons.shape[:-2], len(made), self.plan.num_classes)
        # If the number of clusters changes, all lessons are new.
        if "lessons" not in self.cache or self.cache["lessons"].shape != shape:
            self.cache["lessons"] = np.zeros(shape, dtype=lessons.dtype)
        self.cache["lessons"][..., samples, :] = lessons
        made[samples] = server_round

    def _note_holders(self, server_round: int, replies: Mapping[int, Reply]) -> None:
        """Record that repliers hold what they were sent; nothing is known about the others."""
        if not self.cache:
            return
        for n in self._sampled:
            if n not in replies:
                self.cache["holds"][n] = 0
            elif self.lessons.size:
                subset = self._subset(server_round - 1)
                self.cache["holds"][n, subset] = self.cache["made"][subset]

    def _encode(self, lessons: NDArray[Any], missing: NDArray[np.bool_]) -> Arrays:
        """Encode the missing ones among lessons, (..., P, K)."""
        bits = self._bits(TAUGHT, missing)
        if not missing.any():
            return bits
        rows = lessons[..., missing, :] if bits else lessons
        return {**self.settings.wire.encode(self.lesson_name, rows), **bits}

    def _bits(self, name: str, mask: NDArray[np.bool_]) -> Arrays:
        """Encode a mask; empty if all samples are selected."""
        if mask.all():
            return {}
        return self._once((name, mask.tobytes()), lambda: {name: packed(mask)})

    def _once(self, key: Hashable, make: Callable[[], Arrays]) -> Arrays:
        """Return the encoding of a key in this round, created on first use."""
        if key not in self._encoded:
            self._encoded[key] = make()
        return self._encoded[key]

    # ---- Tools for methods -----------------------------------------------------------

    def stack_predictions(self, replies: Mapping[int, Reply]) -> NDArray[np.float32]:
        """Return the repliers' soft predictions, shape (R, A, K), by ascending partition-id."""
        wire = self.settings.wire
        return np.stack([wire.probabilities(PREDICTIONS, r.arrays) for r in replies.values()])

    def mix(self, weights: NDArray[Any], predictions: NDArray[Any]) -> NDArray[Any]:
        """Mix predictions by the configured rule: (N, M) and (M, P, K) to (N, P, K).

        Entries that were mixed one by one are scaled to rows with sum 1.
        """
        mixed = MIXINGS[self.settings.mixing](weights, predictions)
        return mixed if self.settings.mixing == "mean" else normalized_rows(mixed)

    def round_metrics(self) -> dict[str, float]:
        """Return ``epsilon``, the largest privacy loss of a client, if there is noise."""
        settings = self.settings
        if not settings.noise_multiplier:
            return {}
        releases = int(self.releases.max())
        epsilon = privacy_spent(settings.noise_multiplier, releases, settings.delta)
        log(
            INFO,
            "Privacy spent per client: epsilon %.3g at delta %.3g after %d releases of predictions",
            epsilon,
            settings.delta,
            releases,
        )
        return {"epsilon": epsilon}
