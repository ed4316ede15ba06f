"""FedRep (Collins et al. 2021, arXiv:2102.07078) in about twenty lines; also built in as `fedrep`.

Clients share the body of a network and keep its head, as in FedPer. In each round a client first
trains its head on the body that it received, then the body below that head.

uv run fedkd run -c strategy=examples.own_fedrep:fedrep -c models=lenet
"""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import fedkd_flwr
from fedkd_flwr.clients.api import Arrays, ParameterClient, TrainReply, features, head_of
from strategies.fedper import FedPer


def head_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, which trains the head alone."""
    head = head_of(model)
    return cross_entropy(linear(features(model, images).detach(), head.weight, head.bias), labels)


def body_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, which trains everything below the head."""
    weight, bias = head_of(model).weight.detach(), head_of(model).bias.detach()
    return cross_entropy(linear(features(model, images), weight, bias), labels)


class FedRepClient(ParameterClient):
    """Trains its head, then the body, and sends the body."""

    needs_layer = "head"

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Return the trained body; each part is trained for ``local-epochs`` epochs."""
        self.receive_model(received)
        self.train_locally(server_round, head_loss)
        loss = self.train_locally(server_round, body_loss)
        return TrainReply(self.model_arrays(), {"train-loss": loss})


fedrep = fedkd_flwr.register("own-fedrep", strategy=FedPer, client=FedRepClient)
