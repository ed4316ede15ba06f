"""What every client shares: its data, its model, its memory and its evaluation.

A method overrides `PersonalClient.train`, and `prepare_evaluation` where the evaluated model
is not simply the kept one.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Context
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr import state
from fedkd_flwr.clients import disk
from fedkd_flwr.data import (
    ClientData,
    client_indices,
    hash_of_public_pool,
    load_client,
    public_subset,
)
from fedkd_flwr.export import save_personalized_model
from fedkd_flwr.models import DARTS_MODELS, assign_models, build_model
from fedkd_flwr.training import (
    BatchLoss,
    Evaluation,
    cross_entropy_on,
    epoch_batches,
    evaluate,
    random_batches,
    refresh_statistics,
    seeded,
    train_on,
)
from strategies.base import Settings
from strategies.randomness import random_generator

if TYPE_CHECKING:
    from fedkd_flwr.config import RunConfig

Arrays = dict[str, NDArray[Any]]
"""Named arrays of a message."""


@dataclass(frozen=True)
class TrainReply:
    """What a client answers to a train message.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Named arrays for the server; nothing else of the client's leaves it.
    metrics : dict of str to float
        Numbers for the server.
    """

    arrays: Arrays = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


class PersonalClient(NumPyClient):
    """A client with a model of its own, trained on its own data: the baseline `local`.

    Parameters
    ----------
    context : Context
        Flower's context; the client's memory is its `state`.
    run : RunConfig
        The common run config.
    settings : Settings
        The method's own settings.

    Notes
    -----
    `NumPyClient` exchanges lists of arrays. Their names travel beside them, under ``names`` in
    the config of a call and in the metrics of its result.
    """

    keeps_optimizer = True
    """Whether momentum lives on from round to round, as the model does."""

    def __init__(self, context: Context, run: "RunConfig", settings: Settings) -> None:
        self.context = context
        self.run = run
        self.settings: Any = settings
        self.partition_id = own_partition(context, run.num_clients)
        self.device = run.torch_device

    # ---- Hooks: what a method may override -------------------------------------------

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train on private data; a method adds what it exchanges.

        Parameters
        ----------
        received : dict of str to ndarray
            Arrays of the message.
        server_round : int
            Round of the run, from 1.
        phase : str
            ``train``, or the name of a method's further exchange.
        """
        return TrainReply(metrics={"train-loss": self.train_locally(server_round)})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Bring `model` into the state that is to be evaluated; return further metrics."""
        return {}

    # ---- Data and model --------------------------------------------------------------

    @cached_property
    def data(self) -> ClientData:
        """The client's own data and the public pool, on the device."""
        data_path = str(self.context.node_config.get("data-path", ""))
        return load_client(self.run.data_settings, self.partition_id, data_path)

    @cached_property
    def model_name(self) -> str:
        """The architecture: the node's own choice, else the assignment of the run."""
        if "model" in self.context.node_config:
            return str(self.context.node_config["model"])
        sizes = None
        if self.run.model_assignment == "by-size":
            sizes = [len(indices) for indices in client_indices(self.run.data_settings)]
        run = self.run
        names = assign_models(run.models, run.model_assignment, run.num_clients, sizes, run.seed)
        return names[self.partition_id]

    @cached_property
    def model(self) -> nn.Module:
        """The client's model as it was kept, or with the initial weights of its partition-id."""
        model = self.new_model()
        state.load_model(self.context, "model", model)
        return model

    def new_model(self) -> nn.Module:
        """Build the client's architecture with its initial weights."""
        with seeded("cpu", self.run.seed, "initial-weights", self.partition_id):
            model = build_model(
                self.model_name, self.data.shape, self.data.classes, self.run.search_space
            )
        return model.to(self.device)

    @property
    def num_examples(self) -> int:
        """D_n, the number of private training samples."""
        return len(self.data.train_labels)

    def generator(self, purpose: str, server_round: int) -> np.random.Generator:
        """Return the client's generator for one purpose in one round."""
        return random_generator(self.run.seed, purpose, server_round, self.partition_id)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Bring an array of a message to the device."""
        return torch.from_numpy(array).to(self.device)

    # ---- Steps that methods share ----------------------------------------------------

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build stochastic gradient descent as the run config asks."""
        run = self.run
        return torch.optim.SGD(
            model.parameters(), run.learning_rate, run.momentum, weight_decay=run.weight_decay
        )

    def train_locally(self, server_round: int, loss: BatchLoss | None = None) -> float:
        """Train `model` on private data as the run config asks.

        Parameters
        ----------
        server_round : int
            Round of the run; batches depend on it.
        loss : callable, optional
            Loss on private samples; cross-entropy if left out.

        Returns
        -------
        float
            Mean loss over all samples seen.
        """
        optimizer = self.optimizer(self.model)
        if self.keeps_optimizer:
            state.load_optimizer(self.context, "optimizer", optimizer)
        mean_loss = train_on(
            self.model, loss or self.private_loss, optimizer, self.private_batches(server_round)
        )
        if self.keeps_optimizer:
            state.save_optimizer(self.context, "optimizer", optimizer)
        return mean_loss

    @property
    def private_loss(self) -> BatchLoss:
        """Cross-entropy on the client's training data."""
        return cross_entropy_on(self.data.train_images, self.data.train_labels)

    def private_batches(
        self, server_round: int, num_samples: int | None = None
    ) -> Iterator[Tensor]:
        """Yield a round's private batches: tau random ones where set, else E epochs.

        Parameters
        ----------
        server_round : int
            Round of the run; batches depend on it.
        num_samples : int, optional
            Samples to draw from, all training samples if left out.
        """
        run, generator = self.run, self.generator("batches", server_round)
        samples = num_samples or self.num_examples
        if run.local_iterations:
            endless = random_batches(samples, run.batch_size, generator)
            return itertools.islice(endless, run.local_iterations)
        return epoch_batches(samples, run.batch_size, run.local_epochs, generator)

    def public_images(self, server_round: int) -> Tensor:
        """Return the public subset of a round, shape (P, channels, height, width)."""
        pool = self.data.public_images
        subset = public_subset(len(pool), self.run.public_size, self.run.seed, server_round)
        return pool[torch.from_numpy(subset).to(pool.device)]

    def evaluation_metrics(self, model: nn.Module) -> dict[str, float]:
        """Evaluate a model on the client's test split, and on its validation split if any."""
        data = self.data
        metrics = _named(evaluate(model, data.test_images, data.test_labels))
        if len(data.validation_labels):
            validation = evaluate(model, data.validation_images, data.validation_labels)
            metrics |= _named(validation, "validation-")
        return metrics

    # ---- Memory on disk --------------------------------------------------------------

    @property
    def state_folder(self) -> Path | None:
        """Where the client keeps its memory besides the context, if anywhere."""
        return self._own_folder("state-dir", self.run.state_dir)

    @property
    def models_folder(self) -> Path | None:
        """Where the client's personalized model goes after the last round, if anywhere."""
        folder = self.context.node_config.get("models-dir", self.run.models_dir)
        return Path(str(folder)).expanduser() if folder else None

    @property
    def runs_kept(self) -> int:
        """Of how many runs the client keeps its memory on disk, 0 for all."""
        return int(str(self.context.node_config.get("keep-runs", disk.RUNS_KEPT)))

    def memory_folder(self, run_id: str) -> Path | None:
        """Return where the client keeps its memory of one run, if anywhere."""
        return self.state_folder / run_id if self.state_folder and run_id else None

    def recall(self, memory: Path | None, server_round: int, phase: str) -> None:
        """Take up the memory from disk where the context has none that fits the round.

        A context that has trained in this round already belongs to a round that the server
        repeats after a crash; the memory of the round before is what it starts from.
        """
        remembered = disk.remembered_round(self.context)
        is_repeated = phase == "train" and remembered >= server_round
        if memory is None or (remembered and not is_repeated):
            return
        before = server_round if phase == "train" else server_round + 1
        if not disk.load_context(self.context, memory, before) and is_repeated:
            self.context.state.clear()

    def _own_folder(self, name: str, default: str) -> Path | None:
        folder = self.context.node_config.get(name, default)
        return Path(str(folder)).expanduser() / str(self.partition_id) if folder else None

    # ---- NumPyClient -----------------------------------------------------------------

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Say who the client is: partition-id, model, D_n, and the hash of its public set."""
        return {
            "partition-id": self.partition_id,
            "model": self.model_name,
            "num-examples": self.num_examples,
            "public-hash": hash_of_public_pool(self.run.data_settings),
        }

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Serve a train message and keep the model."""
        received = dict(zip(config["names"], parameters, strict=True))
        server_round, phase = int(config["server-round"]), str(config["phase"])
        memory = self.memory_folder(str(config.get("run-id", "")))
        self.recall(memory, server_round, phase)
        with seeded(self.device, self.run.seed, phase, server_round, self.partition_id):
            reply = self.train(received, server_round, phase)
        state.save_model(self.context, "model", self.model)
        disk.note_round(self.context, server_round)
        if memory:
            disk.save_context(self.context, memory)
            disk.forget_old_runs(memory, self.runs_kept)
        metrics = {**reply.metrics, "names": list(reply.arrays)}
        return list(reply.arrays.values()), self.num_examples, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the client's model on its own test split; nothing is kept."""
        received = dict(zip(config["names"], parameters, strict=True))
        server_round = int(config["server-round"])
        memory = self.memory_folder(str(config.get("run-id", "")))
        self.recall(memory, server_round, "evaluate")
        with seeded(self.device, self.run.seed, "evaluate", server_round, self.partition_id):
            further = self.prepare_evaluation(received, server_round)
            if self.model_name in DARTS_MODELS:
                # Whatever the method: else a comparison would measure running statistics.
                refresh_statistics(self.model, self.data.train_images)
        metrics = {**self.evaluation_metrics(self.model), **further}
        if self.models_folder and server_round == self.run.num_server_rounds:
            save_personalized_model(self, self.models_folder, metrics)
        return metrics["loss"], int(metrics["total"]), metrics


def own_partition(context: Context, num_clients: int) -> int:
    """Return a node's partition-id.

    Raises
    ------
    ValueError
        If the run has no such partition; the server then leaves the node out.
    """
    partition_id = int(context.node_config["partition-id"])
    if not 0 <= partition_id < num_clients:
        raise ValueError(
            f"this node is surplus: its partition-id {partition_id} is none of the run's "
            f"0..{num_clients - 1}"
        )
    return partition_id


def _named(evaluation: Evaluation, prefix: str = "") -> dict[str, float]:
    return {
        f"{prefix}correct": evaluation.correct,
        f"{prefix}total": evaluation.total,
        f"{prefix}loss": evaluation.loss,
    }
