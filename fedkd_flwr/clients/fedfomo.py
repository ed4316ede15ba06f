"""The client of FedFomo."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.models.vectors import copied_state, fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import evaluate
from strategies.core.declarations import BUFFERS, WEIGHTS
from strategies.fedfomo import GAINS_OF_OTHERS, FedFomoSettings, gains_of, weights_of
from strategies.parameters import Model


class FedFomoClient(ParameterClient):
    """Mixes the received models and its own by their validation losses, and trains the result."""

    settings: FedFomoSettings

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps: the model that began its last training; empty before the first."""

        start: dict[str, Tensor] = field(default_factory=dict)

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return no parameter: the client mixes other models into its own."""
        return ()

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Mix, train, and reply with the model and the gains of the other clients."""
        if not self.session.stored_model:
            self.receive_model(received)
        last = model_vectors(self.model)
        number = sum(name.endswith(f"/{WEIGHTS}") for name in received)
        others = [{kind: received[f"{n}/{kind}"] for kind in last} for n in range(number)]
        gains = self.weigh([*others, last])
        weights = weights_of(gains)
        fill_from_vectors(self.model, mean_of([*others, last], weights) if weights.any() else last)
        self.state.start = copied_state(self.model)
        loss = self.train_locally(server_round)
        reported = np.zeros(self.settings.models_sent, dtype=np.float32)
        reported[: len(others)] = gains[:-1]
        return TrainReply({**self.model_arrays(), GAINS_OF_OTHERS: reported}, {"train-loss": loss})

    def weigh(self, candidates: Sequence[Model]) -> NDArray[np.float64]:
        """Return the gain of each of M models, (M,), over the start of the last training."""
        if self.state.start:
            fill_model(self.model, self.state.start)
        else:
            # Before the first training, the last model is the start, and gains nothing.
            fill_from_vectors(self.model, candidates[-1])
        start, loss = model_vectors(self.model), self.validation_loss()
        losses = []
        for candidate in candidates:
            fill_from_vectors(self.model, candidate)
            losses.append(self.validation_loss())
        distances = [distance(start, candidate) for candidate in candidates]
        return gains_of(loss, np.array(losses), np.array(distances))

    def validation_loss(self) -> float:
        """Return the model's cross-entropy on the validation data."""
        data = self.data
        return evaluate(self.model, data.validation_images, data.validation_labels).loss


def distance(one: Model, other: Model) -> float:
    """Return the distance between the parameters of two models."""
    squares = (np.square(one[kind] - other[kind]).sum() for kind in one if kind != BUFFERS)
    return float(np.sqrt(sum(squares)))


def mean_of(models: Sequence[Model], weights: NDArray[np.float64]) -> Model:
    """Return ``Σ_j weight_j w_j`` for the vectors of each kind; models without weight are ignored.

    With weights that sum to 1 it equals ``w_i + Σ_j weight_j (w_j - w_i)``.
    """
    chosen = [(np.float32(w), model) for w, model in zip(weights, models, strict=True) if w]
    return {kind: np.sum([w * model[kind] for w, model in chosen], axis=0) for kind in models[0]}
