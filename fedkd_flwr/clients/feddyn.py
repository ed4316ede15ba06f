"""The client of FedDyn."""

import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.regularizers import (
    ProximalLinear,
    flat_parameters,
    parameters_of,
    split_like_parameters,
)
from strategies.feddyn import FedDynSettings

GRADIENT = "gradient"
"""Name of g_k in the client's memory: (parameters,)."""


class FedDynClient(ParameterClient):
    """Trains the server's model with its dynamic terms, and keeps g_k."""

    keeps_model = False
    settings: FedDynSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train, update g_k, and reply with the model."""
        self.receive_model(received)
        start, alpha = flat_parameters(self.model), self.settings.alpha
        gradient = self.own_gradient(start)
        direction = split_like_parameters(-gradient, self.model)
        dynamic = ProximalLinear([*parameters_of(self.model), *direction], alpha)
        loss = self.train_locally(server_round, dynamic)
        renewed = gradient - alpha * (flat_parameters(self.model) - start)
        self.memory.save(GRADIENT, {GRADIENT: renewed})
        return TrainReply(self.model_arrays(), {"train-loss": loss})

    def own_gradient(self, start: Tensor) -> Tensor:
        """Return g_k, shape (parameters,). It is zero before the client has trained."""
        kept = self.memory.load(GRADIENT)
        return torch.zeros_like(start) if kept is None else kept[GRADIENT].to(self.device)
