"""The client of FedDyn."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.losses import (
    ProximalLinear,
    flat_parameters,
    parameters_of,
    split_like_parameters,
)
from strategies.feddyn import FedDynSettings


class FedDynClient(ParameterClient):
    """Trains the server's model with its dynamic terms, and keeps g_k."""

    keeps_model = False
    settings: FedDynSettings

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps: g_k, shape (parameters,)."""

        gradient: Tensor

    def begin(self) -> State:
        """Return a gradient of zeros."""
        return self.State(gradient=torch.zeros_like(flat_parameters(self.model)))

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train, update g_k, and reply with the model."""
        self.receive_model(received)
        start, alpha = flat_parameters(self.model), self.settings.alpha
        gradient = self.state.gradient
        direction = split_like_parameters(-gradient, self.model)
        dynamic = ProximalLinear([*parameters_of(self.model), *direction], alpha)
        loss = self.train_locally(server_round, dynamic)
        self.state.gradient = gradient - alpha * (flat_parameters(self.model) - start)
        return TrainReply(self.model_arrays(), {"train-loss": loss})
