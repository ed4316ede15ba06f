"""The base class of all clients: data, model, memory and evaluation.

A method overrides `PersonalClient.train`. It also overrides `prepare_evaluation` if it evaluates
another model than the one the client keeps. ``batch-norm-statistics`` selects the statistics with
which batch normalization is evaluated. The default is fresh statistics of the training images.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.client import NumPyClient
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from fedkd_flwr.clients import memory, state_dir
from fedkd_flwr.clients.architectures import assigned_models
from fedkd_flwr.clients.course import Course
from fedkd_flwr.clients.local_training import local_training
from fedkd_flwr.clients.node import read_node
from fedkd_flwr.clients.properties import data_properties
from fedkd_flwr.clients.reply import Arrays as Arrays
from fedkd_flwr.clients.reply import Training as Training
from fedkd_flwr.clients.reply import TrainReply as TrainReply
from fedkd_flwr.clients.steps import StepsCall, checked, yields_jobs
from fedkd_flwr.clients.unfinished import Unfinished
from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.clients import ClientData, load_client, public_samples
from fedkd_flwr.export import model_card, save_personalized_model
from fedkd_flwr.models.pool import Architecture, borrow, give_back
from fedkd_flwr.training.jobs import PredictJob, StepCounter, Steps, TrainJob, complete
from fedkd_flwr.training.loop import (
    Batch,
    Loss,
    count_correct,
    gathered,
    refresh_statistics,
    seeded,
)
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.measures import measured
from fedkd_flwr.training.optimizers import build_optimizer, scheduled_rate
from fedkd_flwr.training.regularizers import parameters_of, relative_distance
from strategies.core.answers import ANSWERS, packed
from strategies.core.flower import log
from strategies.core.metrics import FINE_TUNING_STEPS, GRADIENT_STEPS
from strategies.core.plan import Settings
from strategies.core.randomness import random_generator
from strategies.core.versions import as_sent


class PersonalClient(NumPyClient):
    """A client that trains its own model on its own data: the baseline `local`.

    Parameters
    ----------
    context : Context
        Flower's context. Its `state` is the client's memory.
    run : RunConfig
        The common run config.
    settings : Settings
        The settings of the method.

    Notes
    -----
    `NumPyClient` exchanges lists of arrays. Their names are sent under ``names``, in
    the config of a call and in the metrics of its result.
    """

    keeps_model = True
    """Whether the client keeps its model between rounds instead of receiving one in each round."""

    trains_alone = False
    """Whether it trains more than its model, so that it cannot be trained in a cohort."""

    needs_head = False
    """Whether the method uses the input of the model's head. Models without a head are refused."""

    keeps_optimizer = True
    """Whether the optimizer's state, such as momentum, is kept between rounds."""

    def __init__(self, context: Context, run: RunConfig, settings: Settings) -> None:
        self.context = context
        self.course = Course()
        self.unfinished = Unfinished()
        self.steps_called: list[StepsCall] = []
        self.gradient_steps = StepCounter()
        self.right_answers = b""
        self.run = run
        self.settings: Any = settings
        self.node = read_node(context.node_config, run)
        self.policy = self.node.policy
        self.local = local_training(run, self.node, context)
        self.partition_id = self.node.partition_id
        self.device = run.torch_device

    # ---- Hooks that a method may override --------------------------------------------

    @yields_jobs
    def train(self, received: Arrays, server_round: int, phase: str) -> Training:
        """Train on private data. Methods override this to add what they exchange.

        Parameters
        ----------
        received : dict of str to ndarray
            Arrays of the message.
        server_round : int
            Round of the run, from 1.
        phase : str
            ``train``, or the name of another exchange of the method.

        Yields
        ------
        Job
            A job to run. The caller sends its result back.

        Returns
        -------
        TrainReply
            The reply to the server.
        """
        before = parameters_of(self.model)
        loss = yield from self.train_locally(server_round)
        moved = relative_distance(self.model, before)
        return TrainReply(metrics={"train-loss": loss, "moved-private": moved})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Prepare `model` for its evaluation, and return further metrics.

        Batches of a training go through `gradient_steps.counted`, which counts its steps.
        """
        return {}

    # ---- Data and model --------------------------------------------------------------

    @cached_property
    def data(self) -> ClientData:
        """The client's data and the public pool, on the device.

        Raises
        ------
        PolicyError
            If there are too few samples, or the public pool holds one of them.
        """
        node = self.node
        data = load_client(self.run.data_plan, self.partition_id, node.data_path, node.grouping)
        self.policy.check_data(len(data.train_labels), len(data.test_labels), data.in_public)
        return data

    @cached_property
    def model_name(self) -> str:
        """The architecture: the node's choice if it has one, else the run's assignment."""
        if self.node.model:
            return self.node.model
        return assigned_models(self.run.models, self.run.data_plan)[self.partition_id]

    @cached_property
    def model(self) -> nn.Module:
        """The client's stored model, or a new one with the initial weights of its partition-id."""
        model = borrow(self.architecture)
        if not memory.load_model(self.context, "model", model) and self.keeps_model:
            memory.fill_model(model, self.new_model().state_dict())
        return model

    @property
    def classifier(self) -> nn.Module:
        """The module that is evaluated after `prepare_evaluation`: the client's model."""
        return self.model

    @property
    def architecture(self) -> Architecture:
        """The architecture of the client's model, without its weights."""
        data, search_space = self.data, self.run.models.search_space
        return Architecture(self.model_name, data.shape, data.classes, search_space, self.device)

    def new_model(self) -> nn.Module:
        """Build the client's architecture with its initial weights."""
        with seeded("cpu", self.run.plan.seed, "initial-weights", self.partition_id):
            model = self.architecture.build()
        return model.to(self.device)

    def close(self) -> None:
        """Return the model object to the pool. Its weights were stored before."""
        if "model" in vars(self):
            give_back(vars(self).pop("model"))

    @property
    def num_examples(self) -> int:
        """D_n, the number of private training samples."""
        return len(self.data.train_labels)

    def generator(self, purpose: str, server_round: int) -> np.random.Generator:
        """Return the client's generator for one purpose in one round."""
        return random_generator(self.run.plan.seed, purpose, server_round, self.partition_id)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return an array of a message as a tensor on the device."""
        return torch.from_numpy(array).to(self.device)

    # ---- Steps shared by methods -----------------------------------------------------

    def optimizer(
        self,
        parameters: Iterable[nn.Parameter],
        rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> torch.optim.Optimizer:
        """Build the optimizer named in the run config."""
        name = self.run.training.optimizer
        return build_optimizer(name, parameters, rate, momentum, weight_decay)

    def private_optimizer(
        self, parameters: Iterable[nn.Parameter], server_round: int
    ) -> torch.optim.Optimizer:
        """Build the optimizer for private data with the round's learning rate."""
        training, rate = self.run.training, self.private_rate(server_round)
        return self.optimizer(parameters, rate, training.momentum, training.weight_decay)

    def private_rate(self, server_round: int) -> float:
        """Return the round's learning rate on private data."""
        training = self.run.training
        rounds = self.run.plan.num_server_rounds
        return scheduled_rate(
            training.learning_rate,
            training.learning_rate_schedule,
            min(server_round, rounds),
            rounds,
        )

    @yields_jobs
    def train_locally(
        self,
        server_round: int,
        loss: Loss = cross_entropy,
        beside: Iterator[Batch] | None = None,
        model: nn.Module | None = None,
    ) -> Steps[float]:
        """Train a model on private data with the settings of the run config.

        Parameters
        ----------
        server_round : int
            Round of the run. Batches depend on it.
        loss : callable
            Mean loss on a private batch of images and labels.
        beside : iterator of tuple of Tensor, optional
            Endless batches, one of which the loss takes after each private batch.
        model : nn.Module, optional
            The model to train. The default is the client's model.

        Returns
        -------
        float
            Mean loss over all samples seen.
        """
        model = self.model if model is None else model
        optimizer = self.private_optimizer(model.parameters(), server_round)
        if self.keeps_optimizer:
            memory.load_optimizer(self.context, "optimizer", optimizer)
        run_id = self.course.run_id
        gradients = self.local.gradients(model, self.num_examples, server_round, run_id)
        batches = self.private_batches(server_round)
        if beside is not None:
            # The private batches come first because they end and the others do not.
            batches = ((*own, *other) for own, other in zip(batches, beside, strict=False))
        mean_loss: float = yield TrainJob(model, loss, optimizer, batches, gradients)
        if self.keeps_optimizer:
            memory.save_optimizer(self.context, "optimizer", optimizer)
        return mean_loss

    def private_batches(self, server_round: int) -> Iterator[Batch]:
        """Yield a round's private batches of images and labels."""
        positions = self.private_positions(server_round, self.num_examples)
        return gathered(positions, self.data.train_images, self.data.train_labels)

    def private_positions(self, server_round: int, num_samples: int) -> Iterator[Tensor]:
        """Yield the positions of a round's batches.

        Parameters
        ----------
        server_round : int
            Round of the run. Batches depend on it.
        num_samples : int
            Number of samples to draw from.
        """
        return self.local.positions(num_samples, server_round)

    @yields_jobs
    def predict(self, images: Tensor, temperature: float) -> Steps[Tensor]:
        """Return `model`'s soft predictions ``softmax(z / T)`` on images, shape (P, K)."""
        logits: Tensor = yield PredictJob(self.model, images)
        return torch.softmax(logits / temperature, dim=1)

    def public_images(self, server_round: int) -> Tensor:
        """Return the public subset of a round, shape (P, channels, height, width)."""
        drawn_in = self.course.drawn_in(server_round)
        return public_samples(self.run.data_plan, self.run.plan.public_size, drawn_in)

    def evaluation_metrics(self) -> Steps[dict[str, float]]:
        """Evaluate `classifier` on the client's test split, and on its validation split if any."""
        data = self.data
        logits = yield PredictJob(self.classifier, data.test_images)
        metrics = count_correct(logits, data.test_labels).numbers()
        if self.run.plan.record_answers and self.policy.tells_answers:
            self.right_answers = packed((logits.argmax(dim=1) == data.test_labels).cpu().numpy())
        if measures := self.run.plan.measures:
            held, shown = data.class_counts > 0, self.policy.reported
            metrics |= measured(logits, data.test_labels, held, measures, shown)
        if len(data.validation_labels):
            logits = yield PredictJob(self.classifier, data.validation_images)
            metrics |= count_correct(logits, data.validation_labels).numbers("validation-")
        return metrics

    # ---- NumPyClient -----------------------------------------------------------------

    @property
    def identity(self) -> dict[str, Any]:
        """Part of every reply: identity, versions, and answers of an evaluation if recorded."""
        known = {"partition-id": self.partition_id, "model": self.model_name, "versions": as_sent()}
        return {**known, ANSWERS: self.right_answers} if self.right_answers else known

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's properties: its model, data and public set."""
        return {**self.identity, **data_properties(self.data, self.run, self.node)}

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Handle a train message, store the model, and evaluate it if the message asks for that."""
        server_round, phase = int(config["server-round"]), str(config["phase"])
        with seeded(self.device, self.run.plan.seed, phase, server_round, self.partition_id):
            reply = complete(self.serve(parameters, config))
        if config.get("evaluate"):
            with self.seeded_evaluation(server_round):
                reply.metrics.update(complete(self.count_answers({}, server_round)))
        names = list(reply.arrays)
        return list(reply.arrays.values()), self.num_examples, {**reply.metrics, "names": names}

    def serve_and_count(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> Training:
        """Handle a train message job by job. The model must not draw random numbers."""
        reply = yield from self.serve(parameters, config)
        if config.get("evaluate"):
            counts = yield from self.count_answers({}, int(config["server-round"]))
            reply.metrics.update(counts)
        return reply

    def serve(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Training:
        """Train as a message asks, and store the state that is needed later."""
        received = dict(zip(config["names"], parameters, strict=True))
        self.course = Course.read(config)
        server_round, phase = int(config["server-round"]), str(config["phase"])
        folder = self.node.memory_folder(self.course.run_id)
        if self.course.starts_over(server_round):
            state_dir.start_over(self.context, folder)
        else:
            state_dir.recall(self.context, folder, server_round, phase)
        self.unfinished = state_dir.unfinished(self.context, folder, server_round)
        training = checked(self, self.train(received, server_round, phase))
        reply = yield from self.gradient_steps.over(training)
        self.local.tell(reply.metrics)
        reply.metrics[GRADIENT_STEPS.name] = self.gradient_steps.taken
        if self.keeps_model:
            memory.save_model(self.context, "model", self.model)
        state_dir.note_round(self.context, server_round)
        state_dir.keep_context(self.context, folder, self.node.runs_kept, self.run.keep_rounds)
        return reply

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the client's model on its test split. Nothing is stored."""
        received = dict(zip(config["names"], parameters, strict=True))
        self.course = Course.read(config)
        server_round = int(config["server-round"])
        folder = self.node.memory_folder(self.course.run_id)
        state_dir.recall(self.context, folder, server_round, "evaluate")
        with self.seeded_evaluation(server_round):
            metrics = complete(self.count_answers(received, server_round))
        return metrics.get("loss", math.nan), int(metrics.get("total", 0)), metrics

    def seeded_evaluation(self, server_round: int) -> AbstractContextManager[None]:
        """Seed PyTorch's draws in an evaluation by the round and the client."""
        return seeded(self.device, self.run.plan.seed, "evaluate", server_round, self.partition_id)

    def count_answers(self, received: Arrays, server_round: int) -> Steps[dict[str, float]]:
        """Evaluate the client's model, export it if the run asks for it, and return its metrics."""
        trained = self.gradient_steps.taken
        further = self.prepare_evaluation(received, server_round)
        if steps := self.gradient_steps.taken - trained:
            further = {**further, FINE_TUNING_STEPS.name: steps}
        if self.run.models.batch_norm_statistics == "fresh":
            # For every method: otherwise a comparison would measure running statistics.
            refresh_statistics(self.model, self.data.train_images)
        counts = yield from self.evaluation_metrics()
        metrics = {**counts, **further}
        for folder in self.course.export_folders(self.node, server_round, self.run.keep_best):
            try:
                self.export_model(folder, {**metrics, "round": server_round})
            except (OSError, RuntimeError, SafetensorError) as error:
                # A full disk, or a tensor that cannot be written, must not lose the results.
                log(WARNING, "Client %d: its model was not exported: %s", self.partition_id, error)
        return metrics if self.policy.allow_counts else {}

    def export_model(self, folder: Path, metrics: Mapping[str, float]) -> Path:
        """Write the personalized model and its model card, and return the safetensors file.

        Parameters
        ----------
        folder : Path
            For ``<partition-id>.safetensors`` and ``<partition-id>.json``. Created if missing.
        metrics : mapping of str to float
            Results of the model, for the model card.
        """
        whose = (self.model_name, self.partition_id, self.node.data_path)
        card = model_card(self.run, self.course.run_id, *whose, metrics)
        return save_personalized_model(self.model, card, folder)
