"""The client of FedGen (Zhu et al. 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.training.feature_generator import draws, generated
from fedkd_flwr.training.losses import cross_entropy
from strategies.fedgen import COUNTS, GENERATOR, SHARES, FedGenSettings


@dataclass(frozen=True)
class GeneratedLearning:
    """The cross-entropy on private samples, plus that of the head on generated features.

    The latter is multiplied by `weight`.
    """

    weight: float

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, features: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the loss of a batch."""
        of_generated = functional.cross_entropy(head_of(model)(features), classes)
        return cross_entropy(model, images, labels) + self.weight * of_generated


class FedGenClient(ParameterClient):
    """Trains the received model on private samples and generated features."""

    keeps_model = False
    needs_layer = "head"
    settings: FedGenSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the received model, and reply with it and the counts of the classes."""
        self.receive_model(received)
        weight = self.settings.weight * self.settings.weight_decay_rate ** (server_round - 1)
        # Before its first training the generator knows no class.
        if weight and received[SHARES].any():
            beside, loss = self.generated_batches(received, server_round), GeneratedLearning(weight)
            mean_loss = self.train_locally(server_round, loss, beside)
        else:
            mean_loss = self.train_locally(server_round)
        arrays = {**self.model_arrays(), COUNTS: self.reported_counts().astype(np.float32)}
        return TrainReply(arrays, {"train-loss": mean_loss})

    def generated_batches(
        self, received: Arrays, server_round: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield endless batches of features and their classes."""
        generator = {
            name.removeprefix(GENERATOR): self.tensor(part)
            for name, part in received.items()
            if name.startswith(GENERATOR)
        }
        draw, size = self.generator("generated", server_round), self.settings.generated_batch_size
        for classes, noise in draws(generator, received[SHARES], size, draw):
            yield generated(generator, classes, noise), classes
