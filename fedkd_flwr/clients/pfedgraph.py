"""The client of pFedGraph."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from fedkd_flwr.clients.base import Arrays
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.loop import Loss
from fedkd_flwr.training.losses import cross_entropy, parameters_of
from strategies.pfedgraph import PFedGraphSettings


@dataclass(frozen=True)
class Cosine:
    """Cross-entropy plus lambda times a cosine between a model's parameters and a fixed direction.

    The client's tensors are the direction, one per parameter of the model, in order.
    """

    tensors: Sequence[Tensor] = field(compare=False)
    weight: float

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        own, other = parameters_to_vector(model.parameters()), parameters_to_vector(self.tensors)
        cosine = functional.cosine_similarity(own, other, dim=0)
        return cross_entropy(model, images, labels) + self.weight * cosine


class PFedGraphClient(ParameterClient):
    """Trains the mixture that the server sent, with a cosine to it in the loss."""

    settings: PFedGraphSettings

    def local_loss(self, received: Arrays) -> Loss:
        """Return cross-entropy and ``lambda * cos(w, u_i)``, with u_i as received."""
        if not self.session.stored_model:
            return cross_entropy
        return Cosine(parameters_of(self.model), self.settings.similarity_weight)
