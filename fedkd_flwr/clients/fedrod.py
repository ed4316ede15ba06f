"""The client of Fed-RoD."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.clients.shared_models import shared_parameters
from fedkd_flwr.models.features import features_and_logits
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.model_pool import architecture_of
from fedkd_flwr.models.vectors import copied_state


class Decoupled(nn.Module):
    """A global model and a personal head on its features, to be trained together, not copied."""

    def __init__(self, shared: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.shared, self.head = shared, head
        # Those with equal architectures are trained as a cohort.
        self.architecture = architecture_of(shared), "with a personal head"


@dataclass(frozen=True)
class RobustDecoupling:
    """The sum of both losses of Fed-RoD. Each has a gradient only for its own part.

    The client's tensor is log N_c, shape (K,), minus infinity for a class without samples.
    """

    tensors: Sequence[Tensor] = field(compare=False)

    def __call__(self, model: Decoupled, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        features, generic = features_and_logits(model.shared, images)
        balanced = functional.cross_entropy(generic + self.tensors[0], labels)
        personal = generic.detach() + model.head(features.detach())
        return balanced + functional.cross_entropy(personal, labels)


class FedRoDClient(ParameterClient):
    """Trains the global model by the balanced softmax loss, and a personal head on top of it."""

    needs_layer = "head"

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps: p, weight and bias."""

        personal_head: dict[str, Tensor]

    def begin(self) -> State:
        """Return a head of zeros."""
        weights = head_of(self.model).state_dict().items()
        return self.State(personal_head={name: torch.zeros_like(own) for name, own in weights})

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train both parts, keep the personal head, and reply with the global model."""
        self.receive_model(received)
        both = Decoupled(self.model, self.personal_head())
        loss = RobustDecoupling([self.data.class_counts.log()])
        mean_loss = self.train_locally(server_round, loss, model=both)
        self.state.personal_head = copied_state(both.head)
        return TrainReply(self.model_arrays(), {"train-loss": mean_loss})

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the parameters of the global model."""
        return shared_parameters(self, model, Decoupled)

    def personal_head(self) -> nn.Linear:
        """Return p."""
        own = head_of(self.model)
        head = nn.Linear(own.in_features, own.out_features, device=self.device)
        head.load_state_dict(self.state.personal_head)
        return head

    @torch.no_grad()
    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Add the personal head to the global model's own, after evaluating that model."""
        self.receive_model(received)
        counts = self.session.evaluate("global")
        # The sum of two linear layers on the same features is one.
        own, personal = head_of(self.model), self.personal_head()
        own.weight.add_(personal.weight)
        own.bias.add_(personal.bias)
        return Evaluated(self.model, counts)
