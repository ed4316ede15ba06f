"""The client of FedBABU."""

from dataclasses import replace

from torch import Tensor, nn
from torch.func import functional_call

from fedkd_flwr.clients.base import Arrays, Evaluated
from fedkd_flwr.clients.parameters import FineTuningClient
from fedkd_flwr.models.layers import head_and_body
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.training.loop import Loss
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


FINE_TUNING_LOSSES: dict[str, Loss] = {"full": cross_entropy, "head": head_loss, "body": body_loss}
"""The losses by the part of the model for which they have gradients."""


class FedBABUClient(FineTuningClient):
    """Trains the received body below the initial head, and fine-tunes before it is evaluated."""

    settings: FedBABUSettings
    needs_layer = "body"

    @classmethod
    def trained_parts(cls, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the body."""
        return {"body": head_and_body(model)[1]}

    def receive_model(self, received: Arrays) -> None:
        """Load the received body, and the initial head above it."""
        fill_model(self.model, self.session.new_model(draw=0).state_dict())
        super().receive_model(received)

    def local_loss(self, received: Arrays) -> Loss:
        """Return the cross-entropy, with gradients for the body alone."""
        return body_loss

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Fine-tune the chosen part of the model in the message."""
        evaluated = super().evaluated(received, server_round)
        return replace(evaluated, fine_tuned_by=FINE_TUNING_LOSSES[self.settings.part])
