"""The client of FedProto (Tan et al. 2022) and FedTGP (Zhang et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.prototypes import CommonWidthClient
from fedkd_flwr.models.features import features, features_and_logits
from fedkd_flwr.models.model_pool import plain_copy
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.losses import cross_entropy
from strategies.fedproto import PROTOTYPE_FLAGS, PROTOTYPES, PrototypeSettings

FARTHEST = 1e5
"""Squared distance of a class without a prototype. A larger loss would be left out of means."""


@dataclass(frozen=True)
class TowardsPrototypes:
    """Cross-entropy plus ``weight / d * ||h(x) - prototype[y]||²``, with the weight lambda.

    The client's tensors are the prototypes, (K, d), and flags, (K,), 1 for a class that has a
    prototype, else 0. Samples of classes without a prototype add nothing.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        prototypes, flags = self.tensors
        entered, logits = features_and_logits(model, images)
        distances = (entered - prototypes[labels]).square().mean(dim=1)
        pull = (flags[labels] * distances).mean()
        return functional.cross_entropy(logits, labels) + self.weight * pull


class NearestPrototype(nn.Module):
    """Classifies an image by its nearest prototype: logits are negative squared distances.

    The model computes features; prototypes (K, d), flags (K,). A class with flag 0 is never
    predicted.
    """

    def __init__(self, model: nn.Module, prototypes: Tensor, flags: Tensor) -> None:
        super().__init__()
        self.model, self.prototypes, self.flags = model, prototypes, flags

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (n, K)."""
        entered = features(self.model, images)
        squared = torch.cdist(entered, self.prototypes).square()
        # Farther than all others of this image: no other image may change its prediction.
        without = (2 * squared.amax(dim=1, keepdim=True)).clamp(min=2 * FARTHEST)
        return -torch.where(self.flags > 0, squared, without)


def loss_of_head(nearest: NearestPrototype, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the model inside, which classifies by its head."""
    return cross_entropy(nearest.model, images, labels)


@torch.no_grad()
def nearest_prototype_head(prototypes: Tensor, flags: Tensor) -> nn.Linear:
    """Return the linear layer that is equivalent to `NearestPrototype`.

    ``-||h - C||² = 2 C h - ||C||² - ||h||²``, and the last term is the same for all classes.
    """
    has_prototype, nearness = flags > 0, -prototypes.square().sum(dim=1)
    classes, width = prototypes.shape
    head = nn.Linear(width, classes, device=prototypes.device)
    head.weight.copy_(2 * prototypes * has_prototype[:, None])
    head.bias.copy_(torch.where(has_prototype, nearness, nearness.min() - 2 * FARTHEST))
    return head


class FedProtoClient(CommonWidthClient):
    """Trains with a term towards the prototypes, and replies with its own (Algorithm 1)."""

    settings: PrototypeSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train locally, and reply with the mean feature of each class."""
        loss: Loss = cross_entropy
        if received:
            loss = TowardsPrototypes(self.prototypes(received), self.settings.prototype_weight)
        mean_loss = self.train_locally(server_round, loss)
        entered = self.features()
        return TrainReply(self.class_mean_arrays(entered), {"train-loss": mean_loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the nearest prototype, or the head, which is fine-tuned in both cases."""
        if self.settings.predict == "head":
            return Evaluated(self.model)
        known = self.prototypes(received)
        return Evaluated(
            NearestPrototype(self.model, *known),
            exported=lambda: plain_copy(self.model, nearest_prototype_head(*known)),
            fine_tuned_by=loss_of_head,
        )

    def prototypes(self, received: Arrays) -> tuple[Tensor, Tensor]:
        """Return the prototypes of a message, (K, d), and their flags, (K,)."""
        return self.tensor(received[PROTOTYPES]), self.tensor(received[PROTOTYPE_FLAGS])
