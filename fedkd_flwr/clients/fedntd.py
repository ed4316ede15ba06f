"""The client of FedNTD."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.loop import gathered
from fedkd_flwr.training.losses import kl_to_teacher
from strategies.fedntd import FedNTDSettings


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits (n, K) without that of each sample's label, shape (n, K - 1)."""
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    return logits.gather(1, others + (others >= labels.unsqueeze(1)))


@dataclass(frozen=True)
class NotTrueDistillation:
    """Cross-entropy plus beta times distillation, at tau, of the other classes than the label."""

    beta: float
    temperature: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, taught: Tensor) -> Tensor:
        """Return the loss. `taught` is (n, K), the logits of the received model."""
        logits, tau = model(images), self.temperature
        teacher = functional.softmax(not_true(taught, labels) / tau, dim=1)
        distilled = kl_to_teacher(not_true(logits, labels), teacher, tau, t_squared=True)
        return functional.cross_entropy(logits, labels) + self.beta * distilled


class FedNTDClient(ParameterClient):
    """Trains the global model and distills from it as it was received."""

    keeps_model = False
    settings: FedNTDSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Predict with the received model, then train it towards these predictions too."""
        self.receive_model(received)
        logits = self.predict(self.model, self.data.train_images)
        # The same positions as those of the private batches.
        taught = gathered(self.session.private_positions(server_round, self.data.num_train), logits)
        distillation = NotTrueDistillation(self.settings.beta, self.settings.temperature)
        loss = self.train_locally(server_round, distillation, beside=taught)
        return TrainReply(self.model_arrays(), {"train-loss": loss})
