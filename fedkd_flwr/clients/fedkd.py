"""The client of FedKD (Wu et al. 2022)."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.shared_models import Pair, SharedModelClient
from fedkd_flwr.models.features import feature_width, features_and_logits
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.models.vectors import copied_state, matrix_shapes, model_vectors
from fedkd_flwr.training.loop import seeded
from fedkd_flwr.training.losses import kl_to_teacher
from strategies.core.declarations import WEIGHTS
from strategies.fedkd import FACTORS, RANKS, FedKDSettings, compressed

SMALLEST_TASK_LOSS = 0.1
"""Smallest divisor of the distillation terms, which are divided by the task losses' sum."""


class FeaturePair(Pair):
    """A mentor and a mentee, not copied, with the matrix that maps between their features."""

    def __init__(self, private: nn.Module, shared: nn.Module) -> None:
        super().__init__(private, shared)
        self.between = nn.Linear(feature_width(shared), feature_width(private), bias=False)


def adaptive_mutual_loss(pair: FeaturePair, images: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of both losses of FedKD (Eqs. 1 to 7).

    With the task losses ``C_t`` and ``C_s`` it is ``C_t + C_s + (KL(s || t) + KL(t || s) +
    |h_t - W h_s|²) / (C_t + C_s)``. Gradients do not flow through the other model's predictions.
    """
    own, mentor = features_and_logits(pair.private, images)
    other, mentee = features_and_logits(pair.shared, images)
    task = functional.cross_entropy(mentor, labels) + functional.cross_entropy(mentee, labels)
    imitation = (
        kl_to_teacher(mentor, functional.softmax(mentee.detach(), dim=1), temperature=1.0)
        + kl_to_teacher(mentee, functional.softmax(mentor.detach(), dim=1), temperature=1.0)
        + functional.mse_loss(pair.between(other), own)
    )
    return task + imitation / task.detach().clamp(min=SMALLEST_TASK_LOSS)


class FedKDClient(SharedModelClient):
    """Trains both models, and sends the low-rank factors of the shared model's update."""

    needs_layer = "head"
    settings: FedKDSettings

    @dataclass(kw_only=True)
    class State(SharedModelClient.State):
        """What the client keeps: W, the matrix between the features; empty before a training."""

        between_features: dict[str, Tensor] = field(default_factory=dict)

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the pair locally, and reply with the compressed update of the shared model."""
        with self.shared_model(received) as shared:
            with seeded("cpu", self.session.run.plan.seed, "between-features", self.partition_id):
                pair = FeaturePair(self.model, shared).to(self.device)
            if self.state.between_features:
                fill_model(pair.between, self.state.between_features)
            loss = self.train_locally(server_round, adaptive_mutual_loss, model=pair)
            self.state.between_features = copied_state(pair.between)
            arrays = self.update(received, shared, server_round)
        return TrainReply(arrays, {"train-loss": loss})

    def update(self, received: Arrays, trained: nn.Module, server_round: int) -> Arrays:
        """Return the factors of a model's update, and everything else uncompressed."""
        vectors, shapes = model_vectors(trained), matrix_shapes(trained)
        change = vectors.pop(WEIGHTS) - received[WEIGHTS]
        stretches = np.split(change, np.cumsum(shapes.prod(axis=1))[:-1])
        matrices = [part.reshape(shape) for part, shape in zip(stretches, shapes, strict=True)]
        energy = self.settings.energy(server_round, self.session.run.plan.num_server_rounds)
        factors, ranks = compressed(matrices, energy)
        return {FACTORS: factors, RANKS: ranks, **vectors}
