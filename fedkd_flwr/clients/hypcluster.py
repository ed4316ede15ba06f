"""The client of HypCluster: choose a hypothesis, train it, return it with its index."""

import numpy as np
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from strategies.hypcluster import CLUSTER


class HypClusterClient(ParameterClient):
    """Trains the hypothesis with the lowest loss on its own data."""

    keeps_model = False

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Choose, train locally, and reply with the model and the index of the choice."""
        chosen = self.choose(received)
        loss = self.train_locally(server_round)
        number = np.array([chosen], dtype=np.int64)
        return TrainReply({**self.model_arrays(), CLUSTER: number}, {"train-loss": loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the hypothesis that fits the training data best."""
        self.choose(received)
        return Evaluated(self.model)

    def choose(self, received: Arrays) -> int:
        """Load the hypothesis with the lowest training loss, and return its index."""
        hypotheses = [
            dict(zip(received, rows, strict=True)) for rows in zip(*received.values(), strict=True)
        ]
        losses = []
        for hypothesis in hypotheses:
            self.receive_model(hypothesis)
            logits = self.predict(self.model, self.data.train_images)
            losses.append(float(functional.cross_entropy(logits, self.data.train_labels)))
        # A hypothesis whose loss is NaN is never chosen.
        chosen = int(np.argmin(np.nan_to_num(losses, nan=np.inf)))
        self.receive_model(hypotheses[chosen])
        return chosen
