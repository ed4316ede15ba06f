"""The client of APFL."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.clients.shared_models import Pair, SharedModelClient
from fedkd_flwr.models.model_pool import Architecture, fill_model
from fedkd_flwr.models.vectors import copied_state, model_vectors
from fedkd_flwr.training.losses import cross_entropy
from strategies.apfl import APFLSettings


def mixture(
    private: nn.Module, shared: Mapping[str, Tensor], alpha: float | Tensor
) -> dict[str, Tensor]:
    """Return the parameters ``alpha v + (1 - alpha) w`` by name, with v those of `private`."""
    return {
        name: alpha * own + (1 - alpha) * shared[name] for name, own in private.named_parameters()
    }


def mixture_loss(pair: Pair, images: Tensor, labels: Tensor, alpha: float | Tensor) -> Tensor:
    """Return the cross-entropy of a pair's mixture, without a gradient for the shared model."""
    shared = {name: parameter.detach() for name, parameter in pair.shared.named_parameters()}
    logits = functional_call(pair.private, mixture(pair.private, shared, alpha), (images,))
    return functional.cross_entropy(logits, labels)


@dataclass(frozen=True)
class MixedLearning:
    """The sum of both losses of APFL. Each has a gradient only for its own model."""

    alpha: float

    def __call__(self, pair: Pair, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        own = cross_entropy(pair.shared, images, labels)
        return own + mixture_loss(pair, images, labels, self.alpha)


class APFLClient(SharedModelClient, ParameterClient):
    """Trains the global model and sends it back; trains the private model within the mixture."""

    settings: APFLSettings  # type: ignore[assignment]

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps: `alpha`, the share of the private model in the mixture."""

        alpha: float

    def begin(self) -> State:
        """Return the first share."""
        return self.State(alpha=self.settings.alpha)

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architecture of the client's own model, which is the global model's too, twice."""
        return self.session.architecture, self.session.architecture

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Take a step on alpha, train both models, and reply with the global one."""
        with self.shared_model(received) as shared:
            pair = Pair(self.model, shared)
            if self.settings.adaptive:
                self.state.alpha = self.next_alpha(pair, server_round)
            loss = self.train_locally(server_round, MixedLearning(self.state.alpha), model=pair)
            arrays = dict(model_vectors(shared))
        return TrainReply(arrays, {"train-loss": loss, "alpha": self.state.alpha})

    def next_alpha(self, pair: Pair, server_round: int) -> float:
        """Return alpha after a step on the first private batch of the round."""
        ((images, labels),) = self.session.gradient_steps.counted(
            [next(self.private_batches(server_round))]
        )
        alpha = torch.tensor(self.state.alpha, device=self.device, requires_grad=True)
        (slope,) = torch.autograd.grad(mixture_loss(pair.eval(), images, labels, alpha), alpha)
        return min(
            1.0, max(0.0, self.state.alpha - self.session.local.rate(server_round) * float(slope))
        )

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the mixture of the private and the global model, after the global one."""
        private = copied_state(self.model)
        self.receive_model(received)
        counts = self.session.evaluate("global")
        shared = copied_state(self.model)
        fill_model(self.model, private)
        with torch.no_grad():
            fill_model(self.model, mixture(self.model, shared, self.state.alpha))
        return Evaluated(self.model, counts)
