"""The client of LG-FedAvg (Liang et al. 2020)."""

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.prototypes import SharedHeadClient
from fedkd_flwr.models.layers import head_of
from strategies.prototypes import HEAD_BIAS, HEAD_WEIGHT


class LGFedAvgClient(SharedHeadClient):
    """Trains the averaged head and its own body together, and sends the head back."""

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Load the head if one was received, train locally, and reply with the head."""
        self.receive_head(received)
        loss = self.train_locally(server_round)
        head = head_of(self.model)
        weight, bias = (tensor.detach().cpu().numpy().copy() for tensor in (head.weight, head.bias))
        return TrainReply({HEAD_WEIGHT: weight, HEAD_BIAS: bias}, {"train-loss": loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the averaged head with the client's own body."""
        self.receive_head(received)
        return Evaluated(self.model)
