"""The client of FedProto (Tan et al. 2022) and FedTGP (Zhang et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.prototypes import CommonWidthClient
from fedkd_flwr.models.features import features, features_and_logits
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.losses import cross_entropy
from strategies.core.state import unsaved
from strategies.fedproto import PROTOTYPE_FLAGS, PROTOTYPES, PrototypeSettings

FARTHEST = 1e5
"""Squared distance of a class without a prototype. A larger loss would be left out of means."""


@dataclass(frozen=True)
class TowardsPrototypes:
    """Cross-entropy plus ``weight / d * ||h(x) - prototype[y]||²``.

    Attributes
    ----------
    tensors : sequence of Tensor
        The prototypes, (K, d), and flags, (K,), 1 for a class that has a prototype, else 0.
        Samples of classes without a prototype add nothing.
    weight : float
        lambda.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss on labeled images."""
        prototypes, flags = self.tensors
        entered, logits = features_and_logits(model, images)
        distances = (entered - prototypes[labels]).square().mean(dim=1)
        pull = (flags[labels] * distances).mean()
        return functional.cross_entropy(logits, labels) + self.weight * pull


class NearestPrototype(nn.Module):
    """Classifies an image by its nearest prototype: logits are negative squared distances.

    Parameters
    ----------
    model : nn.Module
        Computes the features.
    prototypes, flags : Tensor
        Shapes (K, d) and (K,). A class with flag 0 is never predicted.
    """

    def __init__(self, model: nn.Module, prototypes: Tensor, flags: Tensor) -> None:
        super().__init__()
        self.model, self.prototypes, self.flags = model, prototypes, flags

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (n, K)."""
        entered = features(self.model, images)
        squared = torch.cdist(entered, self.prototypes).square()
        # Farther than all others, however large the features are.
        without = (2 * squared.amax()).clamp(min=2 * FARTHEST)
        return -torch.where(self.flags > 0, squared, without)


@torch.no_grad()
def nearest_prototype_head(prototypes: Tensor, flags: Tensor) -> nn.Linear:
    """Return the linear layer that is equivalent to `NearestPrototype`.

    ``-||h - C||² = 2 C h - ||C||² - ||h||²``, and the last term is the same for all classes.

    Parameters
    ----------
    prototypes, flags : Tensor
        See `NearestPrototype`.
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

    @dataclass(kw_only=True)
    class State(CommonWidthClient.State):
        """What the client has received.

        Attributes
        ----------
        classifies_by : tuple of Tensor
            The prototypes of the message, (K, d), and their flags, (K,).
        """

        classifies_by: tuple[Tensor, ...] = unsaved()

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train locally, and reply with the mean feature of each class."""
        loss: Loss = cross_entropy
        if received:
            loss = TowardsPrototypes(self.prototypes(received), self.settings.prototype_weight)
        mean_loss = self.train_locally(server_round, loss)
        entered = self.features()
        return TrainReply(self.class_mean_arrays(entered), {"train-loss": mean_loss})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Read the prototypes that classify samples."""
        self.state.classifies_by = self.prototypes(received)
        return {}

    @property
    def classifier(self) -> nn.Module:
        """The nearest-prototype classifier, or the model's head if the settings say so."""
        if self.settings.predict == "head":
            return self.model
        return NearestPrototype(self.model, *self.state.classifies_by)

    @property
    def evaluated_head(self) -> nn.Linear:
        """The nearest-prototype classifier as a linear layer, or the head if so set."""
        if self.settings.predict == "head":
            return super().evaluated_head
        return nearest_prototype_head(*self.state.classifies_by)

    def prototypes(self, received: Arrays) -> tuple[Tensor, Tensor]:
        """Return the prototypes of a message, (K, d), and their flags, (K,)."""
        return self.tensor(received[PROTOTYPES]), self.tensor(received[PROTOTYPE_FLAGS])
