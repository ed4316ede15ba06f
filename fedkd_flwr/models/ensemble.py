"""Two models as one: a weighted sum of their logits."""

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """A client's own model and a shared one, which predict together.

    Parameters
    ----------
    own, shared : nn.Module
        They are not copied.
    own_weight, shared_weight : float
        Factors of their logits.

    Attributes
    ----------
    weights : Tensor
        Shape (2,), both factors; a buffer, so that it is stored with the models.
    """

    weights: Tensor

    def __init__(
        self,
        own: nn.Module,
        shared: nn.Module,
        own_weight: float = 1.0,
        shared_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.own, self.shared = own, shared
        device = next(own.parameters()).device
        self.register_buffer("weights", torch.tensor([own_weight, shared_weight], device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (n, K)."""
        return self.weights[0] * self.own(images) + self.weights[1] * self.shared(images)
