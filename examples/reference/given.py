"""What the references share: clients with digits, batches, plain gradient descent."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client, public_samples
from fedkd_flwr.models.build import build_model
from fedkd_flwr.training.loop import seeded
from strategies.core.randomness import random_generator

SEED, ROUNDS, BATCH, RATE, PUBLIC = 1, 3, 16, 0.05, 40
"""Seed, rounds, private batch size, learning rate, and public images in a round."""

SETTINGS = {
    "dataset": "digits", "max-samples": 300, "held-out-size": 60, "public-size": PUBLIC,
    "partition": "dirichlet", "alpha": 0.5, "num-clients": 4, "client-split": "60/20/20",
    "models": "mlp,lenet", "batch-size": BATCH, "local-epochs": 1, "local-iterations": 0,
    "learning-rate": RATE, "momentum": 0.0, "num-server-rounds": ROUNDS, "seed": SEED,
    "device": "cpu", "torch-threads": 1, "cohort": "off",
}  # fmt: skip
"""The product's run config of the same clients."""


@dataclass
class Client:
    """A client's network, and its images and labels: training, validation and test."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def result(self) -> tuple[float, float]:
        """Return the network's accuracy and loss on the client's test images."""
        correct, loss = evaluated(self.model, *self.test)
        return correct / len(self.test[1]), loss


def clients(settings: dict[str, str | int | float]) -> list[Client]:
    """Return the clients of a run config; networks of one architecture begin alike."""
    run, loaded = read_config(settings).run, []
    for n in range(run.plan.num_clients):
        data, name = load_client(run.data_plan, n), run.models.models[n % len(run.models.models)]
        with seeded("cpu", SEED, "initial-weights", 0):
            model = build_model(name, data.shape, data.classes, run.models.search_space)
        validation = data.validation_images, data.validation_labels
        test = data.test_images, data.test_labels
        loaded.append(Client(model, data.train_images, data.train_labels, validation, test))
    return loaded


def public_images(settings: dict[str, str | int | float], server_round: int) -> Tensor:
    """Return the P public images of a round, the same for all clients."""
    return public_samples(read_config(settings).run.data_plan, PUBLIC, server_round)


def epochs(number: int, samples: int, size: int, purpose: str, *of: int) -> Iterator[Tensor]:
    """Yield the positions of shuffled batches, for some epochs."""
    draw = random_generator(SEED, purpose, *of)
    for _ in range(number):
        order = draw.permutation(samples)
        # A last batch of one sample joins the batch before it.
        starts = [start for start in range(0, samples, size) if samples - start > 1]
        for start, end in zip(starts, [*starts[1:], samples], strict=True):
            yield torch.from_numpy(order[start:end])


def iterations(number: int, samples: int, size: int, purpose: str, *of: int) -> Iterator[Tensor]:
    """Yield the positions of batches that are drawn independently of each other."""
    draw = random_generator(SEED, purpose, *of)
    for _ in range(number):
        yield torch.from_numpy(draw.choice(samples, min(size, samples), replace=False))


def descend(model: nn.Module, loss: Tensor, rate: float) -> None:
    """Take a step of plain gradient descent."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= rate * gradient


def train(client: Client, t: int, n: int, rate: float = RATE) -> None:
    """Minimize the cross-entropy on private data for an epoch."""
    for batch in epochs(1, len(client.labels), BATCH, "batches", t, n):
        outputs = client.model(client.images[batch])
        descend(client.model, functional.cross_entropy(outputs, client.labels[batch]), rate)


@torch.no_grad()
def mixture(models: list[nn.Module], weights: np.ndarray) -> nn.Module:
    """Return a network whose parameters are a weighted sum of those of others."""
    mixed = deepcopy(models[0])
    for parameter, *others in zip(*(model.parameters() for model in [mixed, *models]), strict=True):
        parameter.copy_(sum(float(w) * other for w, other in zip(weights, others, strict=True)))
    return mixed


@torch.no_grad()
def logits(model: nn.Module, images: Tensor) -> Tensor:
    """Return a network's logits on images, (n, K), without training it."""
    was_training = model.training
    outputs: Tensor = model.eval()(images)
    model.train(was_training)
    return outputs


def evaluated(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[int, float]:
    """Return a network's correct predictions and its mean cross-entropy."""
    outputs = logits(model, images)
    correct = int((outputs.argmax(dim=1) == labels).sum())
    return correct, float(functional.cross_entropy(outputs, labels))


def squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the squared L2 distance between two arrays."""
    return float(np.square(a - b).sum())
