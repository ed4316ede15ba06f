"""The client of FedGH (Yi et al. 2023)."""

from fedkd_flwr.clients.base import Arrays, Training, TrainReply
from fedkd_flwr.clients.prototypes import SharedHeadClient
from fedkd_flwr.clients.steps import yields_jobs


class FedGHClient(SharedHeadClient):
    """Uses the global head, trains, and replies with its mean features (Algorithm 1)."""

    @yields_jobs
    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Train the model starting from the global head, and reply with the mean of each class."""
        self.receive_head(received)
        counts = yield from self.counted_when("received")
        loss = yield from self.train_locally(server_round)
        entered = yield from self.features()
        return TrainReply(self.class_mean_arrays(entered), {"train-loss": loss, **counts})
