"""The client of FedBABU."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.fedavg import FineTuningClient
from fedkd_flwr.models.layers import head_and_body
from fedkd_flwr.models.vectors import fill_model
from fedkd_flwr.training.loop import Batch, Loss, train_on
from fedkd_flwr.training.losses import cross_entropy
from strategies.fedbabu import FedBABUSettings


def head_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, with gradients for the last layer alone."""
    return _loss_partly_frozen(model, images, labels, frozen_head=False)


def body_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy, with gradients for all layers but the last."""
    return _loss_partly_frozen(model, images, labels, frozen_head=True)


def _loss_partly_frozen(
    model: nn.Module, images: Tensor, labels: Tensor, *, frozen_head: bool
) -> Tensor:
    """Return the cross-entropy without gradients for the last layer, or for all others."""
    fixed = set(head_and_body(model)[0 if frozen_head else 1])
    frozen = {n: p.detach() for n, p in model.named_parameters() if p in fixed}
    return nn.functional.cross_entropy(functional_call(model, frozen, (images,)), labels)


FINE_TUNING_LOSSES: dict[str, Loss] = {
    "full": cross_entropy,
    "head": head_loss,
    "body": body_loss,
}
"""The losses by the part of the model for which they have gradients."""


class FedBABUClient(FineTuningClient):
    """Trains the received body below the initial head, and fine-tunes before it is evaluated."""

    settings: FedBABUSettings
    initial_draw = 0
    needs_body = True

    @classmethod
    def trained_parts(cls, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the body."""
        return {"body": head_and_body(model)[1]}

    def receive_model(self, received: Arrays) -> None:
        """Load the received body, and the initial head above it."""
        fill_model(self.model, self.new_model().state_dict())
        super().receive_model(received)

    def local_loss(self, received: Arrays) -> Loss:
        """Return the cross-entropy, with gradients for the body alone."""
        return body_loss

    def fine_tune(self, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> None:
        """Train the chosen part of the model, and count the steps."""
        loss = FINE_TUNING_LOSSES[self.settings.part]
        train_on(self.model, loss, optimizer, self.gradient_steps.counted(batches))
