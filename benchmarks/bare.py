"""Clients in bare PyTorch: the arithmetic of a round of KT-pFL or of training, no framework.

There are no messages, client states, checks or run directory. Models stay in a list. The server
only averages the predictions into one teacher for all clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.pairs import Task
from fedkd_flwr.models.build import build_model
from fedkd_flwr.training.settings import TrainingSettings
from strategies.kt_pfl import KTpFLSettings

TRAINING = TrainingSettings()
"""Default settings of training on private data."""

KT_PFL = KTpFLSettings()
"""Default temperature and distillation settings."""


@dataclass(eq=False)
class BareClient:
    """A model with its data and plain training loops.

    The optimizer's momentum buffers persist across rounds.
    """

    model: nn.Module
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), TRAINING.learning_rate, TRAINING.momentum
        )

    def train(self) -> float:
        """Train on private data and return the mean loss."""
        self.model.train()
        total = torch.zeros(())
        for _ in range(TRAINING.local_epochs):
            for batch in shuffled(len(self.images), TRAINING.batch_size):
                loss = functional.cross_entropy(self.model(self.images[batch]), self.labels[batch])
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                total += loss.detach() * len(batch)
        return float(total) / len(self.images) / TRAINING.local_epochs

    def distill(self, public: Tensor, teacher: Tensor) -> None:
        """Distill from a teacher, (P, K), on the public images."""
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), KT_PFL.distillation_learning_rate)
        for _ in range(KT_PFL.distillation_epochs):
            for batch in shuffled(len(public), KT_PFL.public_batch_size):
                logits = self.model(public[batch]) / KT_PFL.temperature
                student = functional.log_softmax(logits, dim=1)
                loss = functional.kl_div(student, teacher[batch], reduction="batchmean")
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    @torch.inference_mode()
    def predict(self, public: Tensor) -> Tensor:
        """Return soft predictions, (P, K)."""
        self.model.eval()
        return torch.softmax(self.model(public) / KT_PFL.temperature, dim=1)

    @torch.inference_mode()
    def evaluate(self) -> tuple[int, float]:
        """Return the number of correct predictions and the mean loss on the test samples."""
        self.model.eval()
        logits: Tensor = self.model(self.test_images)
        correct = int((logits.argmax(dim=1) == self.test_labels).sum())
        return correct, float(functional.cross_entropy(logits, self.test_labels))


def bare_round(model: str, clients: int, train: int, test: int, public: int) -> Task:
    """Return a task that runs one round; repeated calls continue with the same clients."""
    public_images, _ = random_samples(public)
    bare_clients = random_clients(model, clients, train, test)
    teacher = torch.full((public, CLASSES), 1 / CLASSES)

    def run_round() -> None:
        predictions = []
        for client in bare_clients:
            client.distill(public_images, teacher)
            client.train()
            predictions.append(client.predict(public_images))
            client.evaluate()
        teacher.copy_(torch.stack(predictions).mean(dim=0))

    return run_round


def bare_training(model: str, clients: int, train: int, test: int, models: int = 1) -> Task:
    """Return a task that trains and tests clients without any exchange."""
    trained = [random_clients(model, clients, train, test) for _ in range(models)]

    def run_round() -> None:
        for bare_clients in trained:
            for client in bare_clients:
                client.train()
                client.evaluate()

    return run_round


def random_clients(model: str, clients: int, train: int, test: int) -> list[BareClient]:
    """Return clients with random samples and new models."""
    return [
        BareClient(
            build_model(model, SHAPE, CLASSES),
            *random_samples(train),
            *random_samples(test),
        )
        for _ in range(clients)
    ]


def shuffled(count: int, batch_size: int) -> Sequence[Tensor]:
    """Return the shuffled sample indices of an epoch's batches."""
    return torch.split(torch.randperm(count), batch_size)


SHAPE, CLASSES = (1, 28, 28), 10


def random_samples(count: int) -> tuple[Tensor, Tensor]:
    """Draw random images in [-1, 1] and random classes."""
    return torch.rand(count, *SHAPE) * 2 - 1, torch.randint(0, CLASSES, (count,))


def settings_for(model: str, clients: int, samples: int, **further: Any) -> dict[str, Any]:
    """Return settings for clients of equal size, on random images and one CPU thread."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
    return {
        "dataset": (pixels, generator.integers(0, CLASSES, samples)),
        "partition": "iid",
        "client-split": "75/0/25",
        "models": model,
        "num-clients": clients,
        "device": "cpu",
        "torch-threads": 1,
        **further,
    }
