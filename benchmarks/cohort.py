"""Train clients of one architecture one by one, and together as a cohort."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.bare import CLASSES, SHAPE, TRAINING, random_samples
from benchmarks.pairs import Result, time_alternately
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.training.cohort import cohort_size, train_together
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import build_optimizer, epoch_batches, gathered
from fedkd_flwr.training.losses import cross_entropy
from strategies.core.randomness import random_generator

CLIENTS, SAMPLES = 20, 600


def measure() -> Iterator[Result]:
    """Measure one round of training perceptrons on private data."""
    clients = Clients.build("mlp", CLIENTS, SAMPLES, "cpu")
    yield time_alternately(
        f"{CLIENTS} mlp clients, one by one",
        clients.train_one_by_one,
        "trained as a cohort",
        clients.train_in_cohorts,
        at_least=1.5,
    )


@dataclass(frozen=True)
class Clients:
    """Clients of one architecture with random samples.

    Models are trained further with each round.
    """

    architecture: Architecture
    models: list[nn.Module]
    data: list[tuple[Tensor, Tensor]]

    @classmethod
    def build(cls, model: str, clients: int, samples: int, device: str) -> "Clients":
        """Build clients with `samples` random training samples each."""
        search_space = ModelSettings().search_space
        architecture = Architecture(model, SHAPE, CLASSES, search_space, device)
        models = [architecture.build().to(device) for _ in range(clients)]
        drawn = [random_samples(samples) for _ in range(clients)]
        data = [(images.to(device), labels.to(device)) for images, labels in drawn]
        return cls(architecture, models, data)

    def jobs(self) -> list[TrainJob]:
        """Return one round's training of every client on its own samples."""
        return [self._job(client) for client in range(len(self.models))]

    def train_one_by_one(self) -> None:
        """Train each client alone."""
        for job in self.jobs():
            job.run()

    def train_in_cohorts(self) -> None:
        """Train clients side by side, as many at once as a run with ``cohort=on``."""
        jobs, size = self.jobs(), cohort_size(self.architecture, "on")
        for start in range(0, len(jobs), size):
            train_together(jobs[start : start + size])

    def _job(self, client: int) -> TrainJob:
        model, (images, labels) = self.models[client], self.data[client]
        generator = random_generator(0, "batches", client)
        positions = epoch_batches(
            len(images), TRAINING.batch_size, TRAINING.local_epochs, generator
        )
        optimizer = build_optimizer(
            TRAINING.optimizer, model.parameters(), TRAINING.learning_rate, TRAINING.momentum
        )
        return TrainJob(model, cross_entropy, optimizer, gathered(positions, images, labels))
