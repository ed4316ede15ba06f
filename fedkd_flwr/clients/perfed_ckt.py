"""The client of PerFed-CKT (Cho et al. 2021): find the nearest centroid, train towards it."""

import torch
from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient
from fedkd_flwr.training.loop import gathered, random_batches
from fedkd_flwr.training.losses import CoDistillation, squared_distance
from strategies.perfed_ckt import FIXED_SUBSET, PerFedCKTSettings


def nearest_centroid(centroids: Tensor, predictions: Tensor) -> int:
    """Return the centroid nearest to a client's predictions in squared L2 distance (Eq. 4).

    Centroids (c, P, K), predictions (P, K).
    """
    return int((centroids - predictions).square().sum(dim=(1, 2)).argmin())


class PerFedCKTClient(SoftPredictionClient):
    """Trains on private data, with a term towards its nearest centroid on public data."""

    settings: PerFedCKTSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train tau iterations of the two-term loss (Eq. 2), and reply with soft predictions."""
        images = self.session.public_images(FIXED_SUBSET)
        metrics: dict[str, float] = {}
        centroids = self.teachers("centroids", received)
        if centroids is not None:
            predictions = self.soft_predictions(images, temperature=1.0)
            metrics["cluster"] = nearest = nearest_centroid(centroids, predictions)
            centroid = centroids[nearest]
            factor = self.settings.factor(float(squared_distance(predictions, centroid)))
            if self.settings.weight_by_distance:
                metrics["weight"] = factor * self.settings.regularization_weight
            metrics["train-loss"] = self.co_distill(images, centroid, server_round, factor)
        else:
            metrics["train-loss"] = self.train_locally(server_round)
        predictions = self.answers(received, images, temperature=1.0)
        return self.release(predictions, metrics, server_round)

    def co_distill(
        self, images: Tensor, centroid: Tensor, server_round: int, factor: float = 1.0
    ) -> float:
        """Train on private data, with a term towards the centroid on public samples (Eq. 1).

        `factor` multiplies lambda at this client; it travels in the batch, so that clients with
        different factors are trained side by side.
        """
        factors = torch.full((len(images),), factor, device=images.device)
        positions = random_batches(
            len(images), self.settings.public_batch_size, self.public_generator(server_round)
        )
        return self.train_locally(
            server_round,
            CoDistillation(self.settings.regularization_weight),
            beside=gathered(positions, images, centroid, factors),
        )
