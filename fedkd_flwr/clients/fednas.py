"""The client of FedNAS: search by MiLeNAS."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from fedkd_flwr.clients.supernets import SupernetClient
from fedkd_flwr.training.loop import Batch, Loss
from fedkd_flwr.training.losses import cross_entropy
from strategies.fednas import FedNASSettings


@dataclass(frozen=True)
class MixedLevelLoss:
    """``L_val + lambda L_tr`` on a held-out and a training batch, or ``L_tr`` on the latter."""

    weight: float
    """lambda."""

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, *training: Tensor
    ) -> Tensor:
        """Return the loss on images and labels, plus that on training ones if there are any."""
        loss = cross_entropy(model, images, labels)
        return loss + self.weight * cross_entropy(model, *training) if training else loss


class FedNASClient(SupernetClient):
    """Steps on alpha with a held-out batch beside the training batch of the step on w."""

    settings: FedNASSettings

    def search_loss(self) -> Loss:
        """Return the loss of both kinds of step, which their batches tell apart."""
        return MixedLevelLoss(self.settings.training_weight)

    def search_batches(
        self, for_alpha: Iterator[Batch], for_omega: Iterator[Batch]
    ) -> Iterator[Batch]:
        """Yield a held-out and a training batch together, then the training batch alone."""
        for held_out, training in zip(for_alpha, for_omega, strict=False):
            yield (*held_out, *training)
            yield training
