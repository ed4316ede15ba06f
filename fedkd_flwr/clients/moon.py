"""The client of MOON."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.features import features_and_logits
from fedkd_flwr.training.loop import gathered
from strategies.moon import MOONSettings


@dataclass(frozen=True)
class ModelContrast:
    """Cross-entropy plus mu times the model-contrastive term.

    Attributes
    ----------
    mu, temperature : float
        Weight and tau of the term.
    """

    mu: float
    temperature: float

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, received: Tensor, previous: Tensor
    ) -> Tensor:
        """Return the loss. `received` and `previous` are (n, d), the other models' features."""
        own, logits = features_and_logits(model, images)
        others = [functional.cosine_similarity(own, other) for other in (received, previous)]
        similarities = torch.stack(others, dim=1) / self.temperature
        contrast = -functional.log_softmax(similarities, dim=1)[:, 0].mean()
        return functional.cross_entropy(logits, labels) + self.mu * contrast


class MOONClient(ParameterClient):
    """Trains the global model near its features as received, and away from its previous ones."""

    needs_layer = "head"
    settings: MOONSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Compute both models' features first, then train with the contrastive term."""
        previous = self.features()
        self.receive_model(received)
        current = self.features()
        # The same positions as those of the private batches.
        positions = self.session.private_positions(server_round, self.data.num_train)
        contrast = ModelContrast(self.settings.mu, self.settings.temperature)
        beside = gathered(positions, current, previous)
        loss = self.train_locally(server_round, contrast, beside=beside)
        return TrainReply(self.model_arrays(), {"train-loss": loss})
