"""Clients that receive a model, train it and send it back: base classes, and the shortest ones."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedkd_flwr.clients.base import Arrays, Evaluated, PersonalClient, TrainReply
from fedkd_flwr.models.layers import chosen_layers
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import Evaluation, Loss, evaluate
from fedkd_flwr.training.losses import Proximal, cross_entropy, parameters_of
from strategies.core.declarations import LayerChoice
from strategies.fedamp import FedAMPSettings
from strategies.fedavg import FineTuningSettings
from strategies.fedbabu import FedBABUSettings
from strategies.feddf import PFedDFSettings
from strategies.kt_pfl_params import KTpFLParamsSettings
from strategies.parameters import step_towards


class ParameterClient(PersonalClient):
    """Trains the received model on its own data and sends it back: FedAvg's client.

    A method overrides `local_loss`, `extra_parts`, or `train` itself.
    """

    # ---- Hooks of parameter methods --------------------------------------------------

    def local_loss(self, received: Arrays) -> Loss:
        """Return the loss on private batches. It is called after the model was received."""
        return cross_entropy

    def extra_parts(self) -> Arrays:
        """Return further arrays to send with the trained model."""
        return {}

    # ---- Hooks of every client -------------------------------------------------------

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Load the received model, train locally, and reply with the result."""
        self.receive_model(received)
        counts = self.session.evaluate("received")
        loss = self.train_locally(server_round, self.local_loss(received))
        metrics = {"train-loss": loss, **counts}
        return TrainReply({**self.model_arrays(), **self.extra_parts()}, metrics)

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the model in the message."""
        self.receive_model(received)
        return Evaluated(self.model)

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the parameters of the exchanged layers."""
        layers = chosen_layers(model, self.shared_layers)
        return [parameter for layer in layers for parameter in layer.parameters(recurse=False)]

    @property
    def shared_layers(self) -> LayerChoice:
        """The layers of the model that are exchanged."""
        return self.session.run.method.strategy.shared_layers(self.settings)

    def receive_model(self, received: Arrays) -> None:
        """Overwrite the model with the received vectors. Other layers do not change."""
        fill_from_vectors(self.model, received, self.shared_layers)

    def model_arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the shared part of the model as flat vectors by kind."""
        return model_vectors(self.model, self.shared_layers)

    def reported_counts(self) -> NDArray[np.float64]:
        """Return the training samples of each class, (K,), as far as the server may know them.

        Without any class that the node's policy allows the counts are equal.
        """
        counts = self.data.class_counts.cpu().numpy().astype(np.float64)
        counts[~self.session.policy.reported(counts)] = 0
        return counts if counts.any() else np.ones_like(counts)

    def test_result(self) -> Evaluation:
        """Evaluate `model` on the client's test split, as in an evaluation."""
        with self.session.local.evaluation_statistics(self.model, self.data.train_images):
            return evaluate(self.model, self.data.test_images, self.data.test_labels)

    def test_accuracy(self) -> float:
        """Return the accuracy of `model` on the client's test split."""
        result = self.test_result()
        return result.correct / result.total


class PersonalModelClient(ParameterClient):
    """Keeps a personal model in addition to the global one, and is evaluated with it.

    The personal model is `model` at the end of a training. Before its first training, a client
    uses the received model. That model is evaluated too, as the global one.
    """

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the personal model, after the global model for comparison."""
        self.receive_model(received)
        counts = self.session.evaluate("global")
        self.recall_personal_model(received)
        return Evaluated(self.model, counts)

    def recall_personal_model(self, received: Arrays) -> None:
        """Load the personal model of the last training, or the received model if there is none."""
        if stored := self.session.stored_model:
            fill_model(self.model, stored)
        else:
            self.receive_model(received)


class FedAMPClient(ParameterClient):
    """Trains with a proximal term towards the model that the server mixed for the client."""

    settings: FedAMPSettings

    def local_loss(self, received: Arrays) -> Loss:
        """Return cross-entropy and ``lambda / (2 a) * ||w - u_i||²``, with u_i as received."""
        weight = self.settings.regularization_weight / self.settings.attention_step
        return Proximal(parameters_of(self.model), weight)


class KTpFLParamsClient(ParameterClient):
    """A client like FedAvg's that moves only part of the way to the received model."""

    settings: KTpFLParamsSettings

    def receive_model(self, received: Arrays) -> None:
        """Move the model to ``w + tau (received - w)``. The first received model replaces it."""
        tau = self.settings.transfer_step if self.session.stored_model else 1.0
        moved = step_towards(model_vectors(self.model), dict(received), tau)
        fill_from_vectors(self.model, moved)


class FedAvgClient(ParameterClient):
    """Trains the global model. The next global model replaces it."""

    keeps_model = False


class FineTuningClient(FedAvgClient):
    """A client that fine-tunes the global model before it is evaluated."""

    settings: FineTuningSettings | PFedDFSettings | FedBABUSettings

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Fine-tune the model in the message; the epochs of the run come on top."""
        evaluated = super().evaluated(received, server_round)
        return replace(evaluated, fine_tune_epochs=self.settings.epochs)
