"""The client of FedALA."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import pstdev

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.models.layers import layers_of
from fedkd_flwr.models.model_pool import fill_model
from fedkd_flwr.training.loop import Batch
from strategies.fedala import FedALASettings

RECENT, MOST_EPOCHS = 10, 100
"""Losses of how many epochs show that W has converged, and the most epochs until then."""

Parameters = Mapping[str, Tensor]  # parameters of the mixed layers by name


def mixture(own: Parameters, received: Parameters, weights: Parameters) -> dict[str, Tensor]:
    """Return ``L + W * (G - L)`` by name."""
    return {name: torch.lerp(own[name], received[name], weights[name]) for name in own}


class FedALAClient(ParameterClient):
    """Mixes the received model with its own, trains the mixture and sends it."""

    settings: FedALASettings

    @dataclass(kw_only=True)
    class State(ParameterClient.State):
        """What the client keeps: W by the names of the mixed parameters; empty before a mixture."""

        mixing: dict[str, Tensor] = field(default_factory=dict)

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Start from the mixture, train locally, and reply with the model."""
        self.state.mixing = self.receive_and_mix(received, server_round)
        loss = self.train_locally(server_round)
        return TrainReply(self.model_arrays(), {"train-loss": loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Evaluate the mixture."""
        self.receive_and_mix(received, server_round)
        return Evaluated(self.model)

    def receive_and_mix(self, received: Arrays, server_round: int) -> dict[str, Tensor]:
        """Mix the received model with the client's own, if it has trained one, and return W."""
        own = self.mixed_parameters() if self.session.stored_model else None
        self.receive_model(received)
        return self.mix_with(own, server_round) if own else {}

    def mixed_parameters(self) -> dict[str, Tensor]:
        """Return copies of the parameters of the last p layers by name."""
        layers = layers_of(self.model)
        last = layers[len(layers) - min(self.settings.mixed_layers, len(layers)) :]
        chosen = {parameter for layer in last for parameter in layer.parameters(recurse=False)}
        named = self.model.named_parameters()
        return {name: p.detach().clone() for name, p in named if p in chosen}

    def mix_with(self, own: Parameters, server_round: int) -> dict[str, Tensor]:
        """Learn W from L in `own` and G in the model, fill that with the mixture, and return W."""
        received = self.mixed_parameters()
        kept = self.state.mixing
        weights = kept or {name: torch.ones_like(tensor) for name, tensor in own.items()}
        losses: list[float] = []
        self.model.eval()
        for batches in self.weight_epochs(server_round, 1 if kept else MOST_EPOCHS):
            for images, labels in self.session.gradient_steps.counted(batches):
                start = {n: t.requires_grad_() for n, t in mixture(own, received, weights).items()}
                logits = functional_call(self.model, start, (images,))
                loss = functional.cross_entropy(logits, labels)
                slopes = dict(zip(start, torch.autograd.grad(loss, [*start.values()]), strict=True))
                rate = self.settings.rate
                weights = {
                    name: torch.clamp(w - rate * slopes[name] * (received[name] - own[name]), 0, 1)
                    for name, w in weights.items()
                }
            losses.append(loss.item())
            if converged(losses, self.settings.threshold):
                break
        fill_model(self.model, mixture(own, received, weights))
        return weights

    def weight_epochs(self, server_round: int, most: int) -> Iterator[Iterator[Batch]]:
        """Yield the batches of each epoch for W: the same ones, of a share of the samples."""
        generator = self.session.private_generator("mixing", server_round)
        size = self.session.run.training.batch_size
        count = max(1, int(self.settings.sample_share * self.data.num_train))
        chosen = torch.from_numpy(generator.permutation(self.data.num_train)[:count])
        for _ in range(most):
            # In one order, so that the losses of the last batches can converge.
            yield self.session.batches_at(iter(torch.split(chosen, size)))


def converged(losses: Sequence[float], threshold: float) -> bool:
    """Return whether the losses of the last epochs are finite and vary less than a threshold."""
    recent = losses[-RECENT:]
    are_finite = all(map(math.isfinite, recent))
    return len(losses) > RECENT and are_finite and pstdev(recent) < threshold
