"""A control of FedAPEN: its clients train their two models and receive nothing.

uv run fedkd run -c strategy=examples.ensemble_alone:ensemble_alone -c models=lenet

What this gains over `local` is the gain of two models in place of one. What `fedapen` gains over
this is the gain of the others' knowledge.
"""

import fedkd_flwr
from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.fedapen import FedAPENClient
from strategies.fedapen import FedAPEN

SECOND = "second-model"
"""Name of the model in the client's memory that FedAPEN would replace by the average."""


class EnsembleAloneClient(FedAPENClient):
    """FedAPEN's client, which continues with its own copy of the shared model."""

    def receive(self, received: Arrays) -> None:
        """Load the own copy; before the first round, the one that all clients start from."""
        has_own = self.memory.load_model(SECOND, self.shared)
        super().receive({} if has_own else received)

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train both models, and remember the second one."""
        reply = super().train(received, server_round, phase)
        self.memory.save_model(SECOND, self.shared)
        return reply


ensemble_alone = fedkd_flwr.register("ensemble-alone", strategy=FedAPEN, client=EnsembleAloneClient)
