"""The client of FD (Jeong et al. 2018)."""

import itertools
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.prototypes import ClassMeanClient
from strategies.fd import FDSettings


@dataclass(frozen=True)
class ClassDistillation:
    """Cross-entropy plus weighted cross-entropy to the mean prediction of a sample's class.

    Attributes
    ----------
    weight : float
        gamma.
    """

    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        """Return the loss. `targets` is (K, K), one row per class. Zero rows add nothing."""
        logits = model(images)
        distilled = functional.cross_entropy(logits, targets[labels])
        return functional.cross_entropy(logits, labels) + self.weight * distilled


class FDClient(ClassMeanClient):
    """Trains towards the mean prediction of the others, and replies with its own (Alg. 1)."""

    settings: FDSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train locally, and reply with the mean soft prediction of each class."""
        if "targets" in received:
            targets = itertools.repeat((self.tensor(received["targets"]),))
            distillation = ClassDistillation(self.settings.gamma)
            loss = self.train_locally(server_round, distillation, beside=targets)
        else:
            loss = self.train_locally(server_round)
        images = self.data.train_images
        with self.session.local.evaluation_statistics(self.model, images):
            logits = self.predict(self.model, images)
        predictions = functional.softmax(logits, dim=1)
        return TrainReply(self.class_mean_arrays(predictions), {"train-loss": loss})
