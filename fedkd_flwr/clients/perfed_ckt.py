"""PerFed-CKT's client (Cho et al. 2021): find the nearest centroid, train towards it."""

import torch
from torch import Tensor, nn

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient
from fedkd_flwr.training.loop import BatchLoss, predict, random_batches
from fedkd_flwr.training.losses import squared_distance
from strategies.perfed_ckt import PerFedCKTSettings

FIXED_SUBSET = 0
"""The public samples are drawn once and serve all rounds."""


def nearest_centroid(centroids: Tensor, predictions: Tensor) -> int:
    """Return the centroid nearest to a client's predictions in squared L2 distance (Eq. 4).

    Parameters
    ----------
    centroids : Tensor
        Shape (c, P, K).
    predictions : Tensor
        Shape (P, K).
    """
    return int((centroids - predictions).square().sum(dim=(1, 2)).argmin())


class PerFedCKTClient(SoftPredictionClient):
    """Trains on private data with a pull towards its nearest centroid on public data."""

    settings: PerFedCKTSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train tau iterations of the two-term loss (Eq. 2), reply with soft predictions."""
        images = self.public_images(FIXED_SUBSET)
        metrics: dict[str, float] = {}
        loss = self.private_loss
        if "centroids" in received:
            centroids = self.received_predictions("centroids", received)
            nearest = nearest_centroid(centroids, predict(self.model, images, temperature=1.0))
            metrics["cluster"] = nearest
            loss = self.two_term_loss(images, centroids[nearest], server_round)
        metrics["train-loss"] = self.train_locally(server_round, loss)
        predictions = predict(self.model, images, temperature=1.0)
        return self.release(predictions, metrics, server_round)

    def two_term_loss(self, images: Tensor, centroid: Tensor, server_round: int) -> BatchLoss:
        """Return Eq. 1 on batches: cross-entropy plus lambda times the distance to the centroid.

        Parameters
        ----------
        images : Tensor
            Shape (P, channels, height, width), the public samples.
        centroid : Tensor
            Shape (P, K).
        server_round : int
            Round of the run; public batches depend on it.
        """
        private_loss, settings = self.private_loss, self.settings
        public_batches = random_batches(
            len(images),
            settings.public_batch_size,
            generator=self.generator("public-batches", server_round),
        )

        def loss(model: nn.Module, positions: Tensor) -> Tensor:
            public = next(public_batches).to(images.device)
            predictions = torch.softmax(model(images[public]), dim=1)
            pull = squared_distance(predictions, centroid[public])
            return private_loss(model, positions) + settings.regularization_weight * pull

        return loss
