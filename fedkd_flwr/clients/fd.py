"""The client of FD (Jeong et al. 2018)."""

from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Training, TrainReply
from fedkd_flwr.clients.prototypes import ClassMeanClient
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.losses import cross_entropy
from strategies.fd import FDSettings


def towards_class_predictions(targets: Tensor, weight: float) -> Loss:
    """Return cross-entropy plus a weight times that to the mean prediction of a sample's class.

    Parameters
    ----------
    targets : Tensor
        Shape (K, K), one row a class; a row of zeros adds nothing.
    weight : float
        gamma.
    """

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        distilled = functional.cross_entropy(logits, targets[labels])
        return functional.cross_entropy(logits, labels) + weight * distilled

    return loss


class FDClient(ClassMeanClient):
    """Trains with a pull towards the others' mean prediction, replies with its own (Alg. 1)."""

    settings: FDSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Train locally, reply with the mean soft prediction of each class."""
        loss = cross_entropy
        if "targets" in received:
            targets = self.tensor(received["targets"])
            loss = towards_class_predictions(targets, self.settings.gamma)
        mean_loss = yield from self.train_locally(server_round, loss)
        predictions = yield from self.predict(self.data.train_images, temperature=1.0)
        return TrainReply(self.class_mean_arrays(predictions), {"train-loss": mean_loss})
