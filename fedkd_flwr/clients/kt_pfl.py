"""The client of KT-pFL (Zhang et al., NeurIPS 2021): distill, train, predict."""

from torch import Tensor

from fedkd_flwr.clients.base import Arrays, TrainReply
from fedkd_flwr.clients.soft_predictions import SoftPredictionClient
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import epoch_batches, gathered
from fedkd_flwr.training.losses import Distillation, parameters_of, relative_distance
from strategies.core.evaluations import DISTILLATION
from strategies.soft_predictions import DistillationSettings


class KTpFLClient(SoftPredictionClient):
    """Learns from its teacher on public samples, then on its own data (Algorithm 1)."""

    settings: DistillationSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Distill from the teacher if there is one, train locally, reply with soft predictions."""
        metrics: dict[str, float] = {}
        counts: dict[str, float] = {}
        teacher = self.teachers("teacher", received)
        if teacher is not None:
            before = parameters_of(self.model)
            metrics["distillation-loss"] = self.distill(teacher, server_round)
            metrics["moved-public"] = relative_distance(self.model, before)
            counts = self.session.evaluate("distilled")
        if phase == DISTILLATION:
            return TrainReply(metrics=counts)
        before = parameters_of(self.model)
        metrics["train-loss"] = self.train_locally(server_round)
        metrics["moved-private"] = relative_distance(self.model, before)
        images = self.session.public_images(server_round)
        predictions = self.answers(received, images, self.settings.temperature)
        reply = self.release(predictions, metrics, server_round)
        return TrainReply(reply.arrays, {**reply.metrics, **counts})

    def distill(self, teacher: Tensor, server_round: int) -> float:
        """Distill from the teacher (P, K) on the public subset of the round before (Eq. 6)."""
        images = self.session.public_images(server_round - 1)
        return self.distill_on(images, teacher, server_round)

    def distill_on(self, images: Tensor, teacher: Tensor, server_round: int) -> float:
        """Distill from a teacher on some images, (n, …) and (n, K), for R epochs."""
        settings = self.settings
        positions = epoch_batches(
            len(images),
            settings.public_batch_size,
            settings.distillation_epochs,
            self.public_generator(server_round),
        )
        rate = self.session.local.scheduled(settings.distillation_learning_rate, server_round)
        loss: float = self.do(
            TrainJob(
                self.model,
                Distillation(settings.temperature, settings.t_squared),
                self.optimizer(self.model.parameters(), rate),
                gathered(positions, images, teacher),
            )
        )
        return loss
