"""The client of FedRep."""

from torch import nn

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.layers import head_and_body
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.losses import cross_entropy
from strategies.fedrep import FedRepSettings


class FedRepClient(ParameterClient):
    """Trains its head on the received body, then the body below that head, and sends the body."""

    settings: FedRepSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the head, then the body, and reply with the body."""
        self.receive_model(received)
        loss = self.train_head(server_round)
        # A model of one layer is all head.
        if body := self.replaced_parameters(self.model):
            loss = self.train_locally(server_round, parameters=body)
        return TrainReply(self.model_arrays(), {"train-loss": loss})

    @classmethod
    def trained_parts(cls, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the head, and those of the body if there is one."""
        head, body = head_and_body(model)
        return {"head": head, "body": body} if body else {"head": head}

    def train_head(self, server_round: int) -> float:
        """Train the head for `head_epochs` and return the mean loss over all samples seen."""
        head, _ = head_and_body(self.model)
        optimizer = self.session.local.optimizer(head, server_round)
        epochs = self.settings.head_epochs
        batches = self.session.batches_of_epochs("head-batches", server_round, epochs)
        with self.session.kept_momentum(optimizer, self.model):
            mean_loss: float = self.do(TrainJob(self.model, cross_entropy, optimizer, batches))
        return mean_loss
