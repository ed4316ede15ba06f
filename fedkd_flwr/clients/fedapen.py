"""The client of FedAPEN (Qin et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.shared_models import EnsembleClient, Pair, taught
from fedkd_flwr.models.layers import Ensemble
from fedkd_flwr.models.model_pool import plain_copy
from fedkd_flwr.models.vectors import fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import gathered, predict_logits
from strategies.fedapen import FedAPENSettings


@dataclass(frozen=True)
class EnsembleLearning:
    """The mutual learning of a pair, and mu times the cross-entropy of its ensemble.

    The client's tensor is lambda, shape (1,).
    """

    ensemble_weight: float
    tensors: Sequence[Tensor] = field(compare=False)

    def __call__(self, pair: Pair, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        private, shared = pair.private(images), pair.shared(images)
        # With half a weight each, labels and imitation have weight 1 in the double.
        mutual = 2 * (taught(private, labels, shared, 0.5) + taught(shared, labels, private, 0.5))
        # Logits may be of lower precision, and lambda is not.
        ensemble = torch.lerp(shared.float(), private.float(), self.tensors[0])
        return mutual + self.ensemble_weight * functional.cross_entropy(ensemble, labels)


def slope_of(weight: float, private: Tensor, shared: Tensor, labels: Tensor) -> float:
    """Return the derivative in lambda, at `weight`, of the ensemble's mean cross-entropy."""
    errors = functional.softmax(torch.lerp(shared, private, weight), dim=1)
    errors = errors - functional.one_hot(labels, private.shape[1])
    return float((errors * (private - shared)).sum()) / len(labels)


class FedAPENClient(EnsembleClient):
    """Learns the ensemble's weight, trains both models, and sends the shared one back."""

    settings: FedAPENSettings

    @dataclass(kw_only=True)
    class State(EnsembleClient.State):
        """What the client keeps: lambda of the last training, until it is learned anew."""

        private_weight: float

    def begin(self) -> State:
        """Return the first weight."""
        return self.State(private_weight=self.settings.private_weight)

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Positions of the adaptability set, and ascending ones of the samples for the models."""
        total, share = self.data.num_train, self.settings.adaptability_share
        least = max(1, self.session.policy.min_class_count)
        count = min(max(least, int(share * total)), max(0, total - 2)) if share else 0
        generator = self.session.local.lasting_generator("adaptability", 0, self.partition_id)
        order = torch.from_numpy(generator.permutation(total))
        return order[:count], order[count:].sort().values

    @property
    def trainable(self) -> Tensor:
        """Positions of the samples outside of the adaptability set."""
        return self.parts[1]

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Learn lambda, train both models, and reply with the shared one."""
        self.receive(received)
        weight = torch.tensor([self.state.private_weight], device=self.device)
        loss = EnsembleLearning(self.settings.ensemble_weight, [weight])
        pair = Pair(self.model, self.shared)
        mean_loss = self.train_locally(server_round, loss, model=pair)
        metrics = {"train-loss": mean_loss, "private-weight": self.state.private_weight}
        return TrainReply(dict(model_vectors(self.shared)), metrics)

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the ensemble with the averaged shared model, after learning lambda for it."""
        self.receive(received)
        return Evaluated(
            self.ensemble_of(self.model, self.shared),
            exported=lambda: self.ensemble_of(plain_copy(self.model), plain_copy(self.shared)),
        )

    def receive(self, received: Arrays) -> None:
        """Load the shared model, and learn lambda on the adaptability set."""
        fill_from_vectors(self.shared, received)
        chosen = self.parts[0].to(self.device)
        if not len(chosen):
            return
        images, labels = (part[chosen] for part in (self.data.train_images, self.data.train_labels))
        ensemble = self.ensemble_of(self.model, self.shared)
        with self.session.local.evaluation_statistics(ensemble, self.data.train_images):
            logits = [predict_logits(model, images) for model in (self.model, self.shared)]
        size, settings = self.session.run.training.batch_size, self.settings
        for _ in range(settings.adaptability_epochs):
            positions = torch.split(torch.arange(len(chosen)), size)
            batches = gathered(self.session.local.mixed_enough(positions), *logits, labels)
            for private, shared, own in self.session.gradient_steps.counted(batches):
                slope = slope_of(self.state.private_weight, private, shared, own)
                stepped = self.state.private_weight - settings.adaptability_rate * slope
                self.state.private_weight = min(1.0, max(0.0, stepped))

    def ensemble_of(self, private: nn.Module, shared: nn.Module) -> Ensemble:
        """Return two models with the weights lambda and ``1 - lambda`` of their logits."""
        return Ensemble(private, shared, self.state.private_weight, 1 - self.state.private_weight)
