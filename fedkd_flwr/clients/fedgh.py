"""The client of FedGH (Yi et al. 2023)."""

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.prototypes import SharedHeadClient


class FedGHClient(SharedHeadClient):
    """Uses the global head, trains, and replies with its mean features (Algorithm 1)."""

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the model starting from the global head, and reply with the mean of each class."""
        self.receive_head(received)
        counts = self.session.evaluate("received")
        loss = self.train_locally(server_round)
        entered = self.features()
        return TrainReply(self.class_mean_arrays(entered), {"train-loss": loss, **counts})
