"""A control of FedAPEN: its clients train their two models and receive nothing.

uv run fedkd run -c strategy=examples.ensemble_alone:ensemble_alone -c models=lenet

What this gains over `local` is the gain of two models instead of one. What `fedapen` gains over
this is the gain of the others' knowledge.
"""

from dataclasses import dataclass, field

from torch import Tensor

import fedkd_flwr
from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.fedapen import FedAPENClient
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.models.vectors import copied_state
from strategies.fedapen import FedAPEN


class EnsembleAloneClient(FedAPENClient):
    """FedAPEN's client, which continues with its own copy of the shared model."""

    @dataclass(kw_only=True)
    class State(FedAPENClient.State):
        """What the client keeps.

        Attributes
        ----------
        second : dict of str to Tensor
            The model that FedAPEN would replace by the average; empty before the first training.
        """

        second: dict[str, Tensor] = field(default_factory=dict)

    def receive(self, received: Arrays) -> None:
        """Load the own copy; before the first round, the one that all clients start from."""
        fill_model(self.shared, self.state.second)
        super().receive({} if self.state.second else received)

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train both models, and remember the second one."""
        reply = super().train(received, server_round, phase)
        self.state.second = copied_state(self.shared)
        return reply


ensemble_alone = fedkd_flwr.register("ensemble-alone", strategy=FedAPEN, client=EnsembleAloneClient)
