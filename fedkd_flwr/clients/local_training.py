"""How a client trains on its private data in a round: plainly, or with differential privacy."""

import itertools
import math
import secrets
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from logging import WARNING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.clients.node import Node
from fedkd_flwr.clients.privacy_ledger import OF_STEPS
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.clients import ClientData
from fedkd_flwr.memory import SPENT, Memory, MemoryFolder
from fedkd_flwr.training.dp_sgd import (
    PrivateGradients,
    added,
    epsilon_spent,
    poisson_batches,
    require_separate_samples,
)
from fedkd_flwr.training.loop import (
    Batch,
    DivergedError,
    Gradients,
    backpropagate,
    build_optimizer,
    epoch_batches,
    gathered,
    joined,
    random_batches,
    scheduled_rate,
    statistics_of,
)
from strategies.core.flower import log
from strategies.core.metrics import DP_EPSILON
from strategies.core.privacy import Draws, noise_draws
from strategies.core.randomness import random_generator


@dataclass(frozen=True)
class LocalTraining:
    """Batches and gradients of plain training of a client, with the settings of the run."""

    run: RunConfig
    node: Node
    memory: Memory
    _secret: int = field(default_factory=lambda: secrets.randbits(128), repr=False, compare=False)

    def recall(self, folder: MemoryFolder, before_round: int) -> None:
        """Take over the memory from before a round."""
        self.memory.replace(folder.read(before_round) or Memory())

    def positions(self, num_samples: int, server_round: int) -> Iterator[Tensor]:
        """Yield the positions of a round's batches: tau random ones if set, else E epochs."""
        training = self.run.training
        generator = self.batch_generator(server_round)
        if training.local_iterations:
            endless = random_batches(num_samples, training.batch_size, generator)
            return itertools.islice(endless, training.local_iterations)
        return epoch_batches(num_samples, training.batch_size, training.local_epochs, generator)

    def rate(self, server_round: int) -> float:
        """Return the round's learning rate."""
        return self.scheduled(self.run.training.learning_rate, server_round)

    def scheduled(self, rate: float, server_round: int) -> float:
        """Return a rate in a round by the schedule of the run; beyond the last as in the last."""
        schedule, rounds = self.run.training.learning_rate_schedule, self.run.plan.num_server_rounds
        return scheduled_rate(rate, schedule, min(server_round, rounds), rounds)

    def optimizer(
        self, parameters: Iterable[nn.Parameter], server_round: int
    ) -> torch.optim.Optimizer:
        """Build the optimizer of the run config with the round's learning rate."""
        training, rate = self.run.training, self.rate(server_round)
        momentum, decay = training.momentum, training.weight_decay
        return build_optimizer(training.optimizer, parameters, rate, momentum, decay)

    def batches(self, data: ClientData, positions: Iterable[Tensor]) -> Iterator[Batch]:
        """Yield private batches of images and labels by their positions."""
        return gathered(self.mixed_enough(positions), data.train_images, data.train_labels)

    def mixed_enough(self, positions: Iterable[Tensor]) -> Iterable[Tensor]:
        """Join batches with fewer different samples than ``min-class-count``, unless trusted.

        From a step on few samples, whoever sees the model can learn them.
        """
        policy = self.node.policy
        return positions if policy.trust_server else joined(positions, policy.min_class_count)

    def batch_generator(self, server_round: int) -> np.random.Generator:
        """Return the generator of a round's batches, the same each time in one message."""
        order = self.run.training.batch_order
        indices = (server_round, self.node.partition_id, *([order] if order else []))
        return self.private_generator("batches", *indices)

    def private_generator(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a generator of draws among private samples.

        For a node's own data, unless trusted, each message has a secret instead of the run's seed.
        With one seed, two runs could differ in a single batch.
        """
        seed = self._secret if self._hides_draws else self.run.plan.seed
        return random_generator(seed, purpose, *indices)

    def lasting_generator(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a generator of draws among private samples that last for all rounds.

        For a node's own data, unless trusted, they last for all runs, whatever their seeds.
        """
        return random_generator(0 if self._hides_draws else self.run.plan.seed, purpose, *indices)

    @property
    def _hides_draws(self) -> bool:
        """Whether whoever starts runs may not choose among the samples of this node."""
        return bool(self.node.data_path) and not self.node.policy.trust_server

    def gradients(
        self, model: nn.Module, num_samples: int, server_round: int, run_id: str
    ) -> Gradients:
        """Return what sets the gradients of a batch, for one training of a model."""
        return backpropagate

    def ledger_entry(self, num_samples: int) -> dict[str, float]:
        """Return what the training of a round adds to the node's ledger: nothing."""
        return {}

    def evaluation_statistics(
        self, model: nn.Module, images: Tensor
    ) -> AbstractContextManager[None]:
        """Use the batch-normalization statistics of an evaluation for a while in a training."""
        is_fresh = self.run.models.batch_norm_statistics == "fresh"
        return statistics_of(model, images) if is_fresh else nullcontext()

    def report_divergence(self, error: DivergedError) -> None:
        """Tell the operator of a training that was undone; the server is not told."""
        log(WARNING, "Client %d: %s. Its model is as before.", self.node.partition_id, error)

    def spent_privacy(self) -> dict[str, float]:
        """Return epsilon so far as a metric, if steps spend any."""
        return {}


class PrivateTraining(LocalTraining):
    """Batches and gradients of DP-SGD, and what they have spent."""

    def recall(self, folder: MemoryFolder, before_round: int) -> None:
        """Take over the memory from before a round, but for what has been spent since."""
        newest = self.memory.load(SPENT) or (folder.read(math.inf) or Memory()).load(SPENT)
        super().recall(folder, before_round)
        if newest:
            self.memory.save(SPENT, newest)

    def positions(self, num_samples: int, server_round: int) -> Iterator[Tensor]:
        """Yield the positions of a round's batches, drawn by `poisson_batches`."""
        rate, steps = self.sampling(num_samples)
        draw = self._draws("dp-sgd-batches", server_round).uniform
        return poisson_batches(num_samples, rate, steps, draw)

    def mixed_enough(self, positions: Iterable[Tensor]) -> Iterable[Tensor]:
        """Return the batches as they were drawn: their noise hides single samples."""
        return positions

    def sampling(self, num_samples: int) -> tuple[float, int]:
        """Return the sampling rate q, and the steps of a round: tau, or those of E epochs."""
        training = self.run.training
        of_epoch = -(-num_samples // training.batch_size)
        steps = training.local_iterations or training.local_epochs * of_epoch
        return min(1.0, training.batch_size / num_samples), steps

    def ledger_entry(self, num_samples: int) -> dict[str, float]:
        """Return what the training of a round adds to the node's ledger: its steps."""
        rate, steps = self.sampling(num_samples)
        return dict(zip(OF_STEPS, (rate, self.run.dp_sgd.noise_multiplier, steps), strict=True))

    def gradients(
        self, model: nn.Module, num_samples: int, server_round: int, run_id: str
    ) -> Gradients:
        """Count a round's steps as spent, within the budget; return what takes their gradients."""
        require_separate_samples(model)
        settings = self.run.dp_sgd
        rate, steps = self.sampling(num_samples)
        if ledger := self.node.ledger:
            ledger.record(self.ledger_entry(num_samples), run_id, server_round)
        spent = added(self.spent(), rate, settings.noise_multiplier, steps)
        self.memory.save(SPENT, {SPENT: torch.from_numpy(spent)})
        draw = self._draws("dp-sgd-noise", server_round).normal
        return PrivateGradients(
            settings.clip_norm, settings.noise_multiplier, rate * num_samples, draw
        )

    def spent(self) -> NDArray[np.float64]:
        """Return the steps so far, as `fedkd_flwr.training.dp_sgd.added` counts them."""
        kept = self.memory.load(SPENT)
        return np.empty((0, 3)) if kept is None else kept[SPENT].numpy().reshape(-1, 3)

    def spent_privacy(self) -> dict[str, float]:
        """Return epsilon so far as a metric."""
        return {DP_EPSILON.name: epsilon_spent(self.spent(), self.run.dp_sgd.delta)}

    def _draws(self, purpose: str, server_round: int) -> Draws:
        """Return what draws batches or noise. It is secret unless the settings have a seed."""
        seed = self.run.dp_sgd.noise_seed
        return noise_draws(seed, purpose, server_round, self.node.partition_id)
