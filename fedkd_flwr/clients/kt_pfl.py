"""KT-pFL's client (Zhang et al., NeurIPS 2021): distil, train, predict."""

import torch
from torch import Tensor, nn

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient
from fedkd_flwr.training.loop import epoch_batches, predict, train_on
from fedkd_flwr.training.losses import kl_to_teacher
from strategies.kt_pfl import KTpFLSettings


class KTpFLClient(SoftPredictionClient):
    """Learns from its teacher on public samples, then on its own data (Algorithm 1)."""

    settings: KTpFLSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Distil towards the teacher if one came, train locally, reply with soft predictions."""
        metrics = {}
        if "teacher" in received:
            teacher = self.received_predictions("teacher", received)
            metrics["distillation-loss"] = self.distil(teacher, server_round)
        metrics["train-loss"] = self.train_locally(server_round)
        images = self.public_images(server_round)
        predictions = predict(self.model, images, self.settings.temperature)
        return self.release(predictions, metrics, server_round)

    def distil(self, teacher: Tensor, server_round: int) -> float:
        """Train R epochs towards the teacher on last round's public subset (Eq. 6).

        Parameters
        ----------
        teacher : Tensor
            Shape (P, K), rows on the simplex.
        server_round : int
            The current round; the teacher belongs to the one before.

        Returns
        -------
        float
            Mean distillation loss over all samples seen.
        """
        settings = self.settings
        images = self.public_images(server_round - 1)

        def loss(model: nn.Module, positions: Tensor) -> Tensor:
            logits = model(images[positions])
            return kl_to_teacher(
                logits, teacher[positions], settings.temperature, settings.t_squared
            )

        return train_on(
            self.model,
            loss,
            torch.optim.SGD(self.model.parameters(), settings.distillation_learning_rate),
            epoch_batches(
                len(images),
                settings.public_batch_size,
                settings.distillation_epochs,
                self.generator("public-batches", server_round),
            ),
        )
