"""Base classes of clients that exchange class means or features of a common width."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, PersonalClient, TrainReply
from fedkd_flwr.clients.policy import NodePolicy
from fedkd_flwr.models.features import common_width
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.model_pool import Architecture
from strategies.prototypes import CLASS_COUNTS, CLASS_MEANS, HEAD_BIAS, HEAD_WEIGHT


def class_means(values: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each class's rows, (K, d), 0 for an absent one, and counts, (K,)."""
    members = functional.one_hot(labels, num_classes).to(values.dtype)
    counts = members.sum(dim=0)
    # The means are sent in full precision, whatever the precision of the networks.
    with torch.autocast(values.device.type, enabled=False):
        sums = members.T @ values
    return sums / counts.clamp(min=1)[:, None], counts


def without_hidden(
    means: Tensor, counts: Tensor, policy: NodePolicy
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return class means (K, d) and counts (K,) as they leave a node: zeros for small classes."""
    numbers = counts.cpu().numpy()
    shown = policy.reported(numbers)
    return np.where(shown[:, None], means.cpu().numpy(), 0), np.where(shown, numbers, 0)


class ClassMeanClient(PersonalClient):
    """A client that sends the means of its classes."""

    def features(self) -> Tensor:
        """Return the features of the training samples, shape (D_n, d).

        Batch normalization has the statistics of an evaluation, which compares with the means.
        """
        with self.session.local.evaluation_statistics(self.model, self.data.train_images):
            return super().features()

    def class_mean_arrays(self, values: Tensor) -> Arrays:
        """Return class means and counts of values with one row per training sample, (D_n, d).

        Classes that are too small for the node's policy are absent.
        """
        known = class_means(values, self.data.train_labels, self.data.classes)
        means, counts = without_hidden(*known, self.session.policy)
        return {CLASS_MEANS: means, CLASS_COUNTS: counts}


class CommonWidthClient(ClassMeanClient):
    """A client whose features have the same width as those of all clients."""

    needs_layer = "head"

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architecture of the client's model, with a projection if its own width differs."""
        plain, models = self.session.architecture, self.session.run.models
        width = self.settings.feature_width or common_width(models, plain.shape, plain.classes)
        return (replace(plain, feature_width=width),)


class SharedHeadClient(CommonWidthClient):
    """A client whose head the server replaces."""

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the parameters of the head, if one was received."""
        return (
            list(head_of(model).parameters()) if HEAD_WEIGHT in self.session.request.arrays else ()
        )

    @torch.no_grad()
    def receive_head(self, received: Arrays) -> None:
        """Overwrite the model's head if one was received."""
        if HEAD_WEIGHT in received:
            head = head_of(self.model)
            head.weight.copy_(self.tensor(received[HEAD_WEIGHT]))
            head.bias.copy_(self.tensor(received[HEAD_BIAS]))


class FedGHClient(SharedHeadClient):
    """Uses the global head, trains, and replies with its mean features (Algorithm 1)."""

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the model starting from the global head, and reply with the mean of each class."""
        self.receive_head(received)
        counts = self.session.evaluate("received")
        loss = self.train_locally(server_round)
        entered = self.features()
        return TrainReply(self.class_mean_arrays(entered), {"train-loss": loss, **counts})


class LGFedAvgClient(SharedHeadClient):
    """Trains the averaged head and its own body together, and sends the head back."""

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Load the head if one was received, train locally, and reply with the head."""
        self.receive_head(received)
        loss = self.train_locally(server_round)
        head = head_of(self.model)
        weight, bias = (tensor.detach().cpu().numpy().copy() for tensor in (head.weight, head.bias))
        return TrainReply({HEAD_WEIGHT: weight, HEAD_BIAS: bias}, {"train-loss": loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the averaged head with the client's own body."""
        self.receive_head(received)
        return Evaluated(self.model)
