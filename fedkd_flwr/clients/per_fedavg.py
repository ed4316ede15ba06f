"""The client of Per-FedAvg."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkd_flwr.clients.base import Arrays, Evaluated, TrainReply
from fedkd_flwr.clients.parameters import ParameterClient
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import SGD, Batch, random_batches
from fedkd_flwr.training.losses import cross_entropy
from strategies.per_fedavg import PerFedAvgSettings


@dataclass(frozen=True, eq=False)
class LossAfterStep:
    """``f(w'; b2)`` at ``w' = w - a ∇f(w; b1)``, with the gradient ``∇f(w'; b2)`` in w.

    The step, of rate a, is treated as a constant, which gives the first-order gradient. The loss
    needs the model's own parameters, so clients with it are not trained together.
    """

    rate: float

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, own: Tensor, own_labels: Tensor
    ) -> Tensor:
        """Return the loss on b2, images and labels, after a step on b1, `own` and its labels."""
        trained = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        own_loss = cross_entropy(model, own, own_labels)
        # A custom network may have parameters that its outputs do not depend on.
        gradients = torch.autograd.grad(own_loss, list(trained.values()), allow_unused=True)
        stepped = {
            name: parameter - self.rate * gradient
            for (name, parameter), gradient in zip(trained.items(), gradients, strict=True)
            if gradient is not None
        }
        logits = functional_call(model, stepped, (images,))
        return nn.functional.cross_entropy(logits, labels)


class PerFedAvgClient(ParameterClient):
    """Trains the global model for its loss after one step, and evaluates it after adaptation."""

    keeps_model = False
    settings: PerFedAvgSettings

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train on pairs of batches, two gradient steps each, and reply with the model."""
        self.receive_model(received)
        loss = LossAfterStep(self.settings.inner_learning_rate)
        own_batches = self.session.gradient_steps.counted(
            self.random_batches("inner-batches", server_round)
        )
        mean_loss = self.train_locally(server_round, loss, own_batches)
        return TrainReply(self.model_arrays(), {"train-loss": mean_loss})

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Adapt the global model to the training data, if the settings ask for it."""
        self.receive_model(received)
        if self.settings.evaluate_on == "adapted":
            optimizer = SGD(self.model.parameters(), self.settings.inner_learning_rate)
            batches = self.adaptation_batches(server_round)
            self.do(TrainJob(self.model, cross_entropy, optimizer, batches))
        return Evaluated(self.model)

    def adaptation_batches(self, server_round: int) -> Iterator[Batch]:
        """Return the private batches of the adaptation: one, or those of an epoch."""
        purpose = "adaptation-batches"
        if self.settings.adaptation == "batch":
            return islice(self.random_batches(purpose, server_round), 1)
        return self.session.batches_of_epochs(purpose, server_round, 1)

    def random_batches(self, purpose: str, server_round: int) -> Iterator[Batch]:
        """Yield endless random private batches."""
        generator = self.session.private_generator(purpose, server_round)
        size = self.session.run.training.batch_size
        positions = random_batches(self.data.num_train, size, generator)
        return self.session.batches_at(positions)
