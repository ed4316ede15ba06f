"""The client of FML (Shen et al. 2020)."""

from dataclasses import dataclass

from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.shared_models import Pair, SharedModelClient, taught
from fedkd_flwr.models.vectors import model_vectors
from strategies.fml import FMLSettings


@dataclass(frozen=True)
class MutualLearning:
    """The sum of both losses of FML. Each has a gradient only for its own model."""

    alpha: float
    beta: float

    def __call__(self, pair: Pair, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        private, shared = pair.private(images), pair.shared(images)
        return taught(private, labels, shared, self.alpha) + taught(
            shared, labels, private, self.beta
        )


class FMLClient(SharedModelClient):
    """Trains both models by mutual learning, and sends the shared one back."""

    settings: FMLSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train the pair locally, and reply with the shared model."""
        loss = MutualLearning(self.settings.alpha, self.settings.beta)
        with self.shared_model(received) as shared:
            pair = Pair(self.model, shared)
            mean_loss = self.train_locally(server_round, loss, model=pair)
            arrays = dict(model_vectors(shared))
        return TrainReply(arrays, {"train-loss": mean_loss})
