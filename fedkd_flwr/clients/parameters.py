"""What clients share that exchange model parameters: receive a model, train it, send it back."""

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.clients.base import Arrays, PersonalClient, Training, TrainReply
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.losses import cross_entropy


class ParameterClient(PersonalClient):
    """Trains the model that it is sent on its own data and sends it back: FedAvg's client.

    A method overrides `local_loss`, `extra_parts`, or `train` itself.
    """

    # The model is replaced each round, so old momentum points nowhere.
    keeps_optimizer = False

    # ---- Hooks of parameter methods --------------------------------------------------

    def local_loss(self, received: Arrays) -> Loss:
        """Return the loss on private batches, once the model has been received."""
        return cross_entropy

    def extra_parts(self) -> Arrays:
        """Return what travels beside the trained model."""
        return {}

    # ---- Hooks of every client -------------------------------------------------------

    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Take over the model that came, train locally, reply with the result."""
        self.receive_model(received)
        loss = yield from self.train_locally(server_round, self.local_loss(received))
        return TrainReply({**self.model_arrays(), **self.extra_parts()}, {"train-loss": loss})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Evaluate the model that came with the message."""
        self.receive_model(received)
        return {}

    def receive_model(self, received: Arrays) -> None:
        """Overwrite the model with the vectors that the server sent."""
        fill_from_vectors(self.model, received)

    def model_arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the model as flat vectors by kind."""
        return model_vectors(self.model)
