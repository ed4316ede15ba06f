"""What clients share that exchange model parameters: receive a model, train it, send it back."""

from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.clients import memory
from fedkd_flwr.clients.base import Arrays, PersonalClient, Training, TrainReply
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import Evaluation, Loss, evaluate, statistics_of
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

    @yields_jobs
    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Take over the model that came, train locally, reply with the result."""
        self.receive_model(received)
        loss = yield from self.train_locally(server_round, self.local_loss(received))
        return TrainReply({**self.model_arrays(), **self.extra_parts()}, {"train-loss": loss})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Evaluate the model that came with the message."""
        self.receive_model(received)
        return {}

    @property
    def shared_layers(self) -> slice:
        """Which of the model's layers cross the network."""
        return self.run.method.strategy.shared_layers(self.settings)

    def receive_model(self, received: Arrays) -> None:
        """Overwrite the model with the vectors that the server sent; its other layers stay."""
        fill_from_vectors(self.model, received, self.shared_layers)

    def model_arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return what is shared of the model as flat vectors by kind."""
        return model_vectors(self.model, self.shared_layers)

    def test_result(self) -> Evaluation:
        """Evaluate `model` on the client's test split, with the statistics of every evaluation.

        Its own statistics are put back: training may go on from them.
        """
        data, fresh = self.data, self.run.models.batch_norm_statistics == "fresh"
        with statistics_of(self.model, data.train_images) if fresh else nullcontext():
            return evaluate(self.model, data.test_images, data.test_labels)

    def test_accuracy(self) -> float:
        """Return the accuracy of `model` on the client's test split."""
        result = self.test_result()
        return result.correct / result.total


class PersonalModelClient(ParameterClient):
    """Keeps a personal model beside the global one, and is evaluated with it.

    The personal model is what `model` is when a training ends. Before its first, a client has
    the model that it is sent. The accuracy of that model is reported too.
    """

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Evaluate the personal model, after a look at the global one."""
        self.receive_model(received)
        global_accuracy = self.test_accuracy()
        self.recall_personal_model(received)
        return {"global-accuracy": global_accuracy}

    def recall_personal_model(self, received: Arrays) -> None:
        """Let `model` be the personal model of the last training, else the one that was sent."""
        if not memory.load_model(self.context, "model", self.model):
            self.receive_model(received)
