"""The client of PersFL (Divi et al. 2021): keep the best teacher, then distill from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import INFO, WARNING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.messages import TRAIN
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.models.torch_internals import draws_while_training, mixes_samples
from fedkd_flwr.models.vectors import copied_state
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import (
    DivergedError,
    Evaluation,
    epoch_batches,
    evaluate,
    gathered,
    require_finite,
)
from fedkd_flwr.training.losses import cross_entropy_to_teacher, kl_from_teacher, kl_to_teacher
from strategies.core.flower import log
from strategies.persfl import CONSIDER, DIVERGED, PAIRS, PersFLSettings


@dataclass(frozen=True)
class Candidate:
    """A model that was distilled for a pair of the grid, with its results and weights."""

    validation: Evaluation
    test: Evaluation
    weights: dict[str, Tensor]

    @property
    def rank(self) -> tuple[float, float]:
        """That of its validation, lowest without a finite loss; higher is better."""
        return self.validation.rank if math.isfinite(self.validation.loss) else (-1, 0.0)


SoftLoss = Callable[[Tensor, Tensor, float], Tensor]
"""A distillation loss, mean over samples: of logits (batch, K), soft labels (batch, K) and T."""

DIVERGENCES: dict[str, SoftLoss] = {"forward": kl_to_teacher, "reverse": kl_from_teacher}
"""Soft losses of `PersFL`, by the value of ``persfl.divergence``."""


@dataclass(frozen=True)
class Imitation:
    """``(1 - lambda) CE + lambda T² soft loss`` on labels and soft labels (Eqs. 3 and 7)."""

    share: float
    temperature: float
    soft_loss: SoftLoss

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, soft_labels: Tensor
    ) -> Tensor:
        """Return the loss. `soft_labels` is (batch, K), the teacher's at temperature T."""
        logits = model(images)
        hard = functional.cross_entropy(logits, labels)
        soft = self.soft_loss(logits, soft_labels, self.temperature)
        return (1 - self.share) * hard + self.share * self.temperature**2 * soft


class PersFLClient(ParameterClient):
    """A FedAvg client that keeps the best global model and distills from it at the end."""

    keeps_model = False
    settings: PersFLSettings

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps; dicts are empty and numbers zero before it is known."""

        teacher: dict[str, Tensor] = field(default_factory=dict)
        teacher_choice: dict[str, float] = field(default_factory=dict)
        """The teacher's ``round`` and validation ``loss``."""
        personalized: dict[str, Tensor] = field(default_factory=dict)
        """The best global model so far, and the model of stage 2."""
        choice: dict[str, float] = field(default_factory=dict)
        """What stage 2 chose, by the names of metrics."""
        personalized_in: int = 0
        """The round of stage 2."""

    @property
    def soft_loss(self) -> SoftLoss:
        """The distillation loss of stage 2 (Eq. 3)."""
        return DIVERGENCES[self.settings.divergence]

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Stage 1: evaluate the global model, then train it. Stage 2: personalize."""
        self.receive_model(received)
        if phase == TRAIN:
            self.consider_teacher(server_round - 1)
            return super().train(received, server_round, phase)
        # The model of stage 2 is the average of the last round.
        self.consider_teacher(server_round)
        if phase == CONSIDER:
            return TrainReply()
        pairs = self.personalize(server_round)
        return TrainReply({PAIRS: pairs})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the global model in stage 1, the personalized one in stage 2."""
        if received:
            return super().evaluated(received, server_round)
        state = self.state
        if state.personalized_in == server_round:
            fill_model(self.model, state.personalized)
            return Evaluated(self.model, dict(state.choice))
        # Stage 2 failed on this client: the teacher is its best model.
        if state.teacher:
            fill_model(self.model, state.teacher)
            return Evaluated(self.model, {"teacher-round": state.teacher_choice["round"]})
        # The client never took part and only has its initial model.
        self.model.load_state_dict(self.session.new_model().state_dict())
        return Evaluated(self.model)

    def consider_teacher(self, aggregations: int) -> None:
        """Keep the model as teacher if its validation cross-entropy is the lowest so far (Eq. 2).

        The number of aggregations so far is recorded as the teacher's round.
        """
        loss = self.validated().loss
        # NaN never compares as larger, so it would remain the best.
        loss = loss if math.isfinite(loss) else math.inf
        best = self.state.teacher_choice
        if best and self.settings.teacher == "optimal" and loss >= best["loss"]:
            return
        self.state.teacher = copied_state(self.model)
        self.state.teacher_choice = {"round": float(aggregations), "loss": loss}

    def personalize(self, server_round: int) -> NDArray[np.int32]:
        """Distill from the teacher for every pair of the grid, and keep the best model.

        Return correct predictions of each pair's model on validation and on test data, (pairs, 2),
        `DIVERGED` for both if the pair diverged. Raises `DivergedError` if all diverged.
        """
        counts = self.session.evaluate("global")
        fill_model(self.model, self.state.teacher)
        teacher, teacher_accuracy = copied_state(self.model), self.test_accuracy()
        with self.session.local.evaluation_statistics(self.model, self.data.train_images):
            teacher_logits = self.predict(self.model, self.data.train_images)
        grid = self.settings.grid()
        found = np.full((len(grid), 2), DIVERGED, dtype=np.int32)
        best: Candidate | None = None
        for place, (imitation, temperature) in enumerate(grid):
            self.model.load_state_dict(teacher)
            where = self.partition_id, place + 1, len(grid)
            log(INFO, "Client %d, stage 2: pair %d of %d", *where)
            try:
                candidate = self.distilled(teacher_logits, imitation, temperature, server_round)
            except DivergedError as error:
                pair = f"lambda {imitation:g} and T {temperature:g}"
                log(WARNING, "Client %d: skipped %s: %s", self.partition_id, pair, error)
                continue
            found[place] = candidate.validation.correct, candidate.test.correct
            if best is None or candidate.rank > best.rank:
                best, chosen = candidate, {"lambda": imitation, "temperature": temperature}
        if best is None:
            raise DivergedError("all pairs diverged; lower persfl.distillation-learning-rate")
        self.model.load_state_dict(best.weights)
        self.state.personalized = copied_state(self.model)
        of_teacher = {
            "teacher-round": self.state.teacher_choice["round"],
            "teacher-accuracy": teacher_accuracy,
        }
        self.state.choice = {**chosen, **of_teacher, **counts}
        # A run that is extended has stage 2 again in a later round.
        self.state.personalized_in = server_round
        return found

    def distilled(
        self, teacher_logits: Tensor, imitation: float, temperature: float, server_round: int
    ) -> Candidate:
        """Train `model`, which is initialized with the teacher, for one pair of the grid (Eq. 3).

        At lambda = 1 the gradient of a student that equals its teacher is zero: unless the network
        computes something else in training mode, the student is the teacher itself.
        """
        if imitation == 1 and not (mixes_samples(self.model) or draws_while_training(self.model)):
            return self.candidate()
        settings, data = self.settings, self.data
        soft_labels = functional.softmax(teacher_logits / temperature, dim=1)
        optimizer = self.optimizer(self.model.parameters(), settings.distillation_learning_rate)
        generator = self.session.private_generator("distillation-batches", server_round)
        batch_size = self.session.run.training.batch_size
        candidates: list[Candidate] = []
        for epochs in settings.stretches():
            drawn = epoch_batches(self.data.num_train, batch_size, epochs, generator)
            positions = self.session.local.mixed_enough(drawn)
            self.do(
                TrainJob(
                    self.model,
                    Imitation(imitation, temperature, self.soft_loss),
                    optimizer,
                    gathered(positions, data.train_images, data.train_labels, soft_labels),
                )
            )
            candidates.append(self.candidate())
        return max(candidates, key=lambda candidate: candidate.rank)

    def candidate(self) -> Candidate:
        """Return the current `model` with its results.

        Raises `DivergedError` if its loss is not finite, unless the node hides that.
        """
        validation = self.validated()
        if not self.session.policy.hides_divergence:
            require_finite(validation.loss)
        return Candidate(validation, self.test_result(), copied_state(self.model))

    def validated(self) -> Evaluation:
        """Evaluate `model` on the client's validation split, as in an evaluation."""
        data = self.data
        with self.session.local.evaluation_statistics(self.model, data.train_images):
            return evaluate(self.model, data.validation_images, data.validation_labels)


class PersFLGDClient(PersFLClient):
    """PersFL's client with cross-entropy as the soft loss (Eq. 7)."""

    @property
    def soft_loss(self) -> SoftLoss:
        """The distillation loss of stage 2 (Eq. 7)."""
        return cross_entropy_to_teacher
