"""The client of FedMRL (Yi et al. 2024)."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.shared_models import EnsembleClient, Pair
from fedkd_flwr.models.features import feature_width, features, narrowest_width
from fedkd_flwr.models.layers import Ensemble, head_of
from fedkd_flwr.models.model_pool import Architecture, fill_model, plain_copy
from fedkd_flwr.models.vectors import copied_state, fill_from_vectors, model_vectors
from fedkd_flwr.training.loop import seeded
from strategies.fedmrl import FedMRLSettings


class FusedPair(Pair):
    """A private and a shared model, not copied, with a projector on the features of both."""

    def __init__(self, private: nn.Module, shared: nn.Module) -> None:
        super().__init__(private, shared)
        d1, d2 = feature_width(shared), feature_width(private)
        self.projector = nn.Linear(d1 + d2, d2)

    def fused(self, images: Tensor) -> Tensor:
        """Return the fine representation r, shape (n, d2)."""
        parts = features(self.shared, images), features(self.private, images)
        fused: Tensor = self.projector(torch.cat(parts, dim=1))
        return fused

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the private head on r, shape (n, K)."""
        logits: Tensor = head_of(self.private)(self.fused(images))
        return logits

    @torch.no_grad()
    def as_ensemble(self) -> Ensemble:
        """Return two models of the plain architectures whose logits sum to those of the pair."""
        head, projector = head_of(self.private), self.projector
        widths = [feature_width(self.shared), feature_width(self.private)]
        of_shared, of_private = torch.split(head.weight @ projector.weight, widths, dim=1)
        bias = head.weight @ projector.bias + head.bias
        own = with_head(self.private, of_private, bias)
        return Ensemble(own, with_head(self.shared, of_shared, torch.zeros_like(bias)))


def with_head(model: nn.Module, weight: Tensor, bias: Tensor) -> nn.Module:
    """Return a copy of a model in its plain architecture, with another head on its features."""
    head = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device)
    head.load_state_dict({"weight": weight, "bias": bias})
    return plain_copy(model, head)


@dataclass(frozen=True)
class NestedLoss:
    """The cross-entropy of both heads, with m for the one on the first d1 entries of r."""

    coarse_weight: float

    def __call__(self, pair: FusedPair, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        fused, shared_head = pair.fused(images), head_of(pair.shared)
        coarse = functional.cross_entropy(shared_head(fused[:, : shared_head.in_features]), labels)
        fine = functional.cross_entropy(head_of(pair.private)(fused), labels)
        return self.coarse_weight * coarse + fine


class FedMRLClient(EnsembleClient):
    """Trains both models and the projector, and sends the shared model back."""

    needs_layer = "head"
    settings: FedMRLSettings

    @dataclass(kw_only=True)
    class State(EnsembleClient.State):
        """What the client keeps: projector and shared model as trained; empty before the first."""

        projector: dict[str, Tensor] = field(default_factory=dict)
        shared: dict[str, Tensor] = field(default_factory=dict)

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architectures of both models, the shared one with d1 features."""
        own, plain = super().architectures
        narrowest = narrowest_width(self.session.run.models, plain.name, plain.shape, plain.classes)
        return own, replace(plain, feature_width=self.settings.width(narrowest))

    @cached_property
    def pair(self) -> FusedPair:
        """Both models, and the projector of the last training."""
        with seeded("cpu", self.session.run.plan.seed, "projector", self.session.initial_draw):
            pair = FusedPair(self.model, self.shared).to(self.device)
        if self.state.projector:
            fill_model(pair.projector, self.state.projector)
        return pair

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train all three parts, keep them, and reply with the shared model."""
        fill_from_vectors(self.shared, received)
        loss = NestedLoss(self.settings.coarse_weight)
        mean_loss = self.train_locally(server_round, loss, model=self.pair)
        self.state.projector = copied_state(self.pair.projector)
        self.state.shared = copied_state(self.shared)
        return TrainReply(dict(model_vectors(self.shared)), {"train-loss": mean_loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the pair of the last training, which predicts by the private head."""
        if self.state.shared:
            fill_model(self.shared, self.state.shared)
        return Evaluated(self.pair, exported=self.pair.as_ensemble)
