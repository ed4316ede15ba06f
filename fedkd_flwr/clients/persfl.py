"""The client of PersFL (Divi et al. 2021): keep the best teacher, then distill from it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.messages import TRAIN
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.memory import Memory
from fedkd_flwr.models.torch_internals import draws_while_training, mixes_samples
from fedkd_flwr.models.vectors import copied_state, fill_model
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import (
    DivergedError,
    Evaluation,
    epoch_batches,
    evaluate,
    gathered,
    generators_of,
    require_finite,
)
from fedkd_flwr.training.losses import cross_entropy_to_teacher, kl_from_teacher, kl_to_teacher
from strategies.core.flower import log
from strategies.core.metrics import GRADIENT_STEPS
from strategies.persfl import CONSIDER, DIVERGED, PAIRS, PersFLSettings


@dataclass(frozen=True)
class Candidate:
    """A model that was distilled for a pair of the grid, with its results and weights."""

    validation: Evaluation
    test: Evaluation
    weights: dict[str, Tensor]


@dataclass
class PairSearch:
    """A client's progress through the pairs of the grid.

    `counts` (pairs, 2) are correct predictions on validation and test data, `DIVERGED` for both if
    a pair diverged or was not tried yet. `best` is the position of the best pair, -1 for none.
    """

    counts: NDArray[np.int32]
    tried: int = 0
    best: int = -1
    loss: float = 0.0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def add(self, candidate: Candidate | None) -> None:
        """Record the result of the next pair: its model, or None if it diverged."""
        position, self.tried = self.tried, self.tried + 1
        if candidate is None:
            return
        found = candidate.validation
        self.counts[position] = found.correct, candidate.test.correct
        best = Evaluation(int(self.counts[self.best, 0]), found.total, self.loss)
        if self.best < 0 or found.rank > best.rank:
            self.best, self.loss = position, found.loss
            self.weights = candidate.weights

    def saved(self) -> Memory:
        """Return the progress as a memory of its own."""
        progress = Memory()
        progress.save("counts", {"counts": torch.from_numpy(self.counts)})
        progress.save("best", self.weights)
        numbers = {"tried": self.tried, "best": self.best, "loss": self.loss}
        progress.save_numbers("search", numbers)
        return progress

    @classmethod
    def read(cls, progress: Memory) -> "PairSearch":
        """Read the progress from the result of `saved`."""
        counts, numbers = progress.tensors["counts"]["counts"], progress.numbers["search"]
        tried, best = int(numbers["tried"]), int(numbers["best"])
        return cls(counts.numpy(), tried, best, numbers["loss"], progress.load("best") or {})


SoftLoss = Callable[[Tensor, Tensor, float], Tensor]
"""A distillation loss, mean over samples: of logits (batch, K), soft labels (batch, K) and T."""

DIVERGENCES: dict[str, SoftLoss] = {"forward": kl_to_teacher, "reverse": kl_from_teacher}
"""Soft losses of `PersFL`, by the value of ``persfl.divergence``."""


@dataclass(frozen=True)
class Imitation:
    """``(1 - lambda) CE + lambda T² soft loss`` on labels and soft labels (Eqs. 3 and 7).

    The soft loss is the KL divergence (Eq. 3) or the cross-entropy (Eq. 7).
    """

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

        If the same message was interrupted before, it continues after the last pair that was tried.

        The evaluation reports ``lambda``, ``temperature`` and ``teacher-round`` of the kept model.
        For comparison it also reports the test accuracy ``teacher-accuracy``, and counts of the
        final global model in `model`.

        Return correct predictions of each pair's model on validation and on test data, (pairs, 2),
        `DIVERGED` for both if the pair diverged. Raises `DivergedError` if all diverged.
        """
        counts = self.session.evaluate("global")
        fill_model(self.model, self.state.teacher)
        teacher_accuracy = self.test_accuracy()
        search = self.searched(server_round)
        if search.best < 0:
            raise DivergedError("all pairs diverged; lower persfl.distillation-learning-rate")
        self.model.load_state_dict(search.weights)
        self.state.personalized = copied_state(self.model)
        imitation, temperature = self.settings.grid()[search.best]
        self.state.choice = {
            "lambda": imitation,
            "temperature": temperature,
            "teacher-round": self.state.teacher_choice["round"],
            "teacher-accuracy": teacher_accuracy,
            **counts,
        }
        # A run that is extended has stage 2 again in a later round.
        self.state.personalized_in = server_round
        return search.counts

    def searched(self, server_round: int) -> PairSearch:
        """Distill from the teacher, which is in `model`, for each pair that was not tried yet."""
        teacher, images = copied_state(self.model), self.data.train_images
        with self.session.local.evaluation_statistics(self.model, images):
            teacher_logits = self.predict(self.model, images)
        grid, search = self.settings.grid(), self.search_so_far()
        for imitation, temperature in grid[search.tried :]:
            self.model.load_state_dict(teacher)
            place = search.tried + 1, len(grid)
            log(INFO, "Client %d, stage 2: pair %d of %d", self.partition_id, *place)
            candidate = None
            try:
                candidate = self.distilled(teacher_logits, imitation, temperature, server_round)
            except DivergedError as error:
                pair = f"lambda {imitation:g} and T {temperature:g}"
                log(WARNING, "Client %d: skipped %s: %s", self.partition_id, pair, error)
            search.add(candidate)
            self.note_search(search)
        return search

    def search_so_far(self) -> PairSearch:
        """Return the interrupted search if it had this teacher, else a new search."""
        folder = self.session.memory_folder
        progress = folder.read_progress(self.session.request.server_round) if folder else None
        if progress and _are_alike(progress.numbers["teacher"], self.state.teacher_choice):
            states = progress.load("generators") or {}
            for number, generator in enumerate(generators_of(self.device)):
                # The run may continue on another device, for whose generator there is no state.
                if str(number) in states:
                    generator.set_state(states[str(number)])
            self.session.gradient_steps.taken += int(progress.numbers["steps"][GRADIENT_STEPS.name])
            return PairSearch.read(progress)
        shape = len(self.settings.grid()), 2
        return PairSearch(np.full(shape, DIVERGED, dtype=np.int32))

    def note_search(self, search: PairSearch) -> None:
        """Note the progress of stage 2, so that an interrupted message can continue."""
        folder = self.session.memory_folder
        if folder is None:
            return
        progress = search.saved()
        states = enumerate(generator.get_state() for generator in generators_of(self.device))
        progress.save("generators", {str(number): state for number, state in states})
        progress.save_numbers("teacher", self.state.teacher_choice)
        progress.save_numbers("steps", {GRADIENT_STEPS.name: self.session.gradient_steps.taken})
        folder.write_progress(self.session.request.server_round, progress)

    def distilled(
        self, teacher_logits: Tensor, imitation: float, temperature: float, server_round: int
    ) -> Candidate:
        """Train `model`, which is initialized with the teacher, for one pair of the grid (Eq. 3).

        At lambda = 1 the gradient of a student that equals its teacher is zero. Unless the network
        computes something else in training mode, the student is then the teacher itself. If the
        settings validate it during training, its best state is returned.

        `teacher_logits` (D_n, K) are on the training data; `imitation` is lambda. Raises
        `DivergedError` if the loss is not finite, in training or on the validation data.
        """
        if imitation == 1 and not (mixes_samples(self.model) or draws_while_training(self.model)):
            return self.candidate()
        settings, data = self.settings, self.data
        soft_labels = functional.softmax(teacher_logits / temperature, dim=1)
        optimizer = self.optimizer(self.model.parameters(), settings.distillation_learning_rate)
        generator = self.generator("distillation-batches", server_round)
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
        return max(candidates, key=lambda candidate: candidate.validation.rank)

    def candidate(self) -> Candidate:
        """Return the current `model` with its results.

        Raises `DivergedError` if its loss on the validation data is not finite.
        """
        validation = self.validated()
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


def _are_alike(noted: Mapping[str, float], teacher: Mapping[str, float]) -> bool:
    """Return whether two teachers are the same. A GPU may not repeat a round bit for bit."""
    same_round = noted["round"] == teacher["round"]
    return same_round and math.isclose(noted["loss"], teacher["loss"], rel_tol=1e-3)
