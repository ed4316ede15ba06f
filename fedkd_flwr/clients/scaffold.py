"""The client of SCAFFOLD."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.losses import Linear, flat_parameters, split_like_parameters
from strategies.scaffold import CONTROL, ScaffoldSettings, counted_steps


class ScaffoldClient(ParameterClient):
    """Trains the global model with corrected steps, and keeps its own control variate."""

    keeps_model = False
    settings: ScaffoldSettings

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps: c_n, shape (parameters,)."""

        control: Tensor

    def begin(self) -> State:
        """Return a control variate of zeros."""
        return self.State(control=torch.zeros_like(flat_parameters(self.model)))

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train, update c_n, and reply with both."""
        self.receive_model(received)
        start = flat_parameters(self.model)
        difference = self.tensor(received[CONTROL]) - self.state.control
        correction = self.settings.correction * difference
        corrected = Linear(split_like_parameters(correction, self.model))
        loss = self.train_locally(server_round, corrected)
        # K eta, the distance that a unit gradient would move the model.
        steps = sum(1 for _ in self.session.private_positions(server_round, self.data.num_train))
        counted = counted_steps(steps, self.session.run.training.momentum)
        distance = self.session.local.rate(server_round) * counted
        mean_step = (start - flat_parameters(self.model)) / distance
        self.state.control = mean_step - correction
        arrays = {**self.model_arrays(), CONTROL: self.state.control.cpu().numpy()}
        return TrainReply(arrays, {"train-loss": loss})
