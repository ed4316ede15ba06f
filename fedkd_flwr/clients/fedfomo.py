"""The client of FedFomo."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedkd_flwr.clients.base import Arrays, Training, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.clients.steps import yields_jobs
from fedkd_flwr.models.vectors import KINDS, fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import evaluate
from strategies.fedfomo import WEIGHTS_OF_OTHERS, FedFomoSettings, weights_of_others
from strategies.parameters import BUFFERS, Model


class FedFomoClient(ParameterClient):
    """Weighs the received models, mixes them into its own, and trains the result."""

    settings: FedFomoSettings

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return no parameter: the client mixes other models into its own."""
        return ()

    @yields_jobs
    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Mix, train, and reply with the model and the weights of the other clients."""
        if "model" not in self.memory.tensors:
            self.receive_model(received)
        others = models_by_position(received)
        own, own_loss = model_vectors(self.model), self.validation_loss()
        # With extremely large weights, rounding would erase the other models.
        start = own if np.isfinite(own_loss) else zeros_like(own)
        weights = self.weigh(start, own_loss, others)
        fill_from_vectors(self.model, mixed(start, others, weights) if weights.any() else own)
        loss = yield from self.train_locally(server_round)
        reported = np.zeros(self.settings.models_sent, dtype=np.float32)
        reported[: len(weights)] = weights
        return TrainReply(
            {**self.model_arrays(), WEIGHTS_OF_OTHERS: reported}, {"train-loss": loss}
        )

    def weigh(self, own: Model, loss: float, others: Sequence[Model]) -> NDArray[np.float64]:
        """Return the weight of each model, (M,), by its loss on the validation data.

        Parameters
        ----------
        own : dict of str to ndarray
            The model into which the others are mixed. `model` is overwritten.
        loss : float
            Loss of the client's model.
        others : sequence of dict
            M models.
        """
        losses = []
        for other in others:
            fill_from_vectors(self.model, other)
            losses.append(self.validation_loss())
        distances = [distance(own, other) for other in others]
        return weights_of_others(loss, np.array(losses), np.array(distances))

    def validation_loss(self) -> float:
        """Return the model's cross-entropy on the validation data."""
        data = self.data
        return evaluate(self.model, data.validation_images, data.validation_labels).loss


def models_by_position(received: Arrays) -> list[Model]:
    """Return the models received as ``<position>/<kind>``, in order."""
    models: dict[int, Model] = {}
    for name, vector in received.items():
        position, _, kind = name.rpartition("/")
        if position and kind in KINDS:
            models.setdefault(int(position), {})[kind] = vector
    return [models[position] for position in sorted(models)]


def zeros_like(model: Model) -> Model:
    """Return a model whose entries are all 0."""
    return {kind: np.zeros_like(vector) for kind, vector in model.items()}


def distance(one: Model, other: Model) -> float:
    """Return the distance between the parameters of two models."""
    squares = (np.square(one[kind] - other[kind]).sum() for kind in one if kind != BUFFERS)
    return float(np.sqrt(sum(squares)))


def mixed(
    own: Mapping[str, NDArray[np.float32]], others: Sequence[Model], weights: NDArray[np.float64]
) -> Model:
    """Return ``w_i + Σ_j weight_j (w_j - w_i)`` for the vectors of each kind."""
    result = {kind: vector.copy() for kind, vector in own.items()}
    for other, weight in zip(others, weights, strict=True):
        for kind, vector in own.items():
            result[kind] += np.float32(weight) * (other[kind] - vector)
    return result
