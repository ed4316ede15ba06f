"""Train clients of one architecture one by one, and together as a cohort."""

from collections.abc import Iterator, Sequence

from benchmarks.bare import TRAINING, random_samples
from benchmarks.images import SOURCE
from benchmarks.pairs import Result, time_alternately
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.training.cohort import train_together
from fedkd_flwr.training.jobs import TrainJob
from fedkd_flwr.training.loop import epoch_batches, gathered
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.optimizers import build_optimizer
from strategies.core.randomness import random_generator

CLIENTS, SAMPLES = 20, 600


def measure() -> Iterator[Result]:
    """Measure one round of training perceptrons on private data."""
    search_space = ModelSettings().search_space
    architecture = Architecture("mlp", SOURCE.shape, SOURCE.classes, search_space, "cpu")
    models = [architecture.build() for _ in range(CLIENTS)]
    data = [random_samples(SAMPLES) for _ in range(CLIENTS)]

    def jobs() -> Iterator[TrainJob]:
        for client, (model, (images, labels)) in enumerate(zip(models, data, strict=True)):
            generator = random_generator(0, "batches", client)
            positions = epoch_batches(
                SAMPLES, TRAINING.batch_size, TRAINING.local_epochs, generator
            )
            optimizer = build_optimizer(
                TRAINING.optimizer, model.parameters(), TRAINING.learning_rate, TRAINING.momentum
            )
            yield TrainJob(model, cross_entropy, optimizer, gathered(positions, images, labels))

    def one_by_one() -> Sequence[float]:
        return [job.run() for job in jobs()]

    yield time_alternately(
        f"{CLIENTS} mlp clients, one by one",
        one_by_one,
        "trained as a cohort",
        lambda: train_together(list(jobs())),
        at_least=1.5,
    )
