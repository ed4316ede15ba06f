"""The base class of all clients: data, model and training.

A method overrides `PersonalClient.train`. It also overrides `prepare_evaluation` if it evaluates
another model than the one the client keeps. ``batch-norm-statistics`` selects the statistics with
which batch normalization is evaluated. The default is fresh statistics of the training images.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.clients.architectures import assigned_models
from fedkd_flwr.clients.reply import Arrays as Arrays
from fedkd_flwr.clients.reply import TrainReply as TrainReply
from fedkd_flwr.clients.safeguard import LOCAL, Safeguard
from fedkd_flwr.clients.serving import ServingClient
from fedkd_flwr.data.client_data import ClientData
from fedkd_flwr.data.clients import load_client, public_samples
from fedkd_flwr.data.custom_data import require_complete
from fedkd_flwr.data.settings import DataPlan
from fedkd_flwr.models.build import num_parameters
from fedkd_flwr.models.features import FeatureExtractor
from fedkd_flwr.models.model_pool import (
    Architecture,
    borrow,
    common_weights,
    give_back,
    plain_copy,
)
from fedkd_flwr.models.vectors import fill_model
from fedkd_flwr.training.jobs import (
    Job,
    PredictJob,
    TrainJob,
    train_unless_it_diverges,
    undone_if_it_diverges,
)
from fedkd_flwr.training.loop import (
    Batch,
    Loss,
    epoch_batches,
    gathered,
    keep_best_epoch,
    seeded,
    train_on,
)
from fedkd_flwr.training.losses import cross_entropy
from fedkd_flwr.training.optimizers import build_optimizer, scheduled_rate
from fedkd_flwr.training.regularizers import parameters_of, relative_distance
from fedkd_flwr.training.suspension import result_of
from strategies.core.randomness import random_generator


class PersonalClient(ServingClient):
    """A client that trains its own model on its own data: the baseline `local`.

    The parameters are those of `ServingClient`.
    """

    outside_cohorts = False
    """Whether it must be trained one at a time."""

    needs_head = False
    """Whether the method uses the input of the model's head. Models without a head are refused."""

    needs_body = False
    """Whether the method needs layers below the last. Models of one layer are refused."""

    takes_missing_values = False
    """Whether samples of a node's own data may have some."""

    # ---- Hooks that a method may override --------------------------------------------

    def train(self, received: Arrays, server_round: int, phase: str) -> TrainReply:
        """Train on private data. Methods override this to add what they exchange.

        Parameters
        ----------
        received : dict of str to ndarray
            Arrays of the message.
        server_round : int
            Round of the run, from 1.
        phase : str
            ``train``, or the name of another exchange of the method.

        Returns
        -------
        TrainReply
            The reply to the server.
        """
        before = parameters_of(self.model)
        loss = self.train_locally(server_round)
        moved = relative_distance(self.model, before)
        return TrainReply(metrics={"train-loss": loss, "moved-private": moved})

    def prepare_evaluation(self, received: Arrays, server_round: int) -> dict[str, float]:
        """Prepare `model` for its evaluation, and return further metrics.

        Batches of a training go through `gradient_steps.counted`, which counts its steps.
        """
        return {}

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the parameters of a trained model that the server replaces before the next round.

        Momentum lives as long as the weights it belongs to: theirs starts anew.
        """
        return ()

    # ---- Data and model --------------------------------------------------------------

    @cached_property
    def data_plan(self) -> DataPlan:
        """What the data of the run's clients depend on."""
        return self.run.data_plan.at_node(self.node.data_path)

    @cached_property
    def data(self) -> ClientData:
        """The client's data and the public pool, on the device.

        Raises
        ------
        PolicyError
            If there are too few samples, or the public pool holds one of them.
        DataError
            If samples of the node have missing values, and its model is a network.
        """
        node = self.node
        own = (node.data_path, node.grouping, node.input_statistics)
        data = load_client(self.data_plan, self.partition_id, *own)
        if node.data_path and not self.takes_missing_values:
            require_complete(data.samples.images, "this node", self.model_name)
        self.policy.check_data(data.sizes, data.in_public)
        return data

    @cached_property
    def model_name(self) -> str:
        """The architecture: the node's choice if it has one, else the run's assignment."""
        if self.node.model:
            return self.node.model
        return assigned_models(self.run.models, self.data_plan)[self.partition_id]

    @cached_property
    def model(self) -> nn.Module:
        """The client's stored model, or a new one with the initial weights of its partition-id."""
        model, stored = borrow(self.architecture), self.stored_model
        if stored or self.keeps_model:
            fill_model(model, stored or self._initial_weights())
        return model

    @property
    def architecture(self) -> Architecture:
        """The architecture of the client's model, without its weights."""
        data, models = self.data, self.run.models
        return Architecture(
            self.model_name,
            data.shape,
            data.classes,
            models.search_space,
            self.device,
            models.feature_width,
        )

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architectures of all networks that the client trains, its own first.

        It is trained in a cohort only if none of them draws random numbers.
        """
        return (self.architecture,)

    @property
    def exported_model(self) -> nn.Module:
        """The evaluated model in its plain architecture, with any projection in its head."""
        return plain_copy(self.model) if self.architecture.feature_width else self.model

    @property
    def initial_draw(self) -> int:
        """Number of the draw of the client's initial weights, 0 if all clients have the same."""
        return 0 if self.run.models.initial_weights == "common" else self.partition_id

    def new_model(self) -> nn.Module:
        """Build the client's architecture with its initial weights.

        Draw 0 is common to all clients, and is the initial global model of a method that has one.
        """
        with seeded("cpu", self.run.plan.seed, "initial-weights", self.initial_draw):
            model = self.architecture.build()
        return model.to(self.device)

    def _initial_weights(self) -> Mapping[str, Tensor]:
        if self.initial_draw:
            return self.new_model().state_dict()
        return common_weights(self.architecture, self.run.plan.seed, self.new_model)

    def try_step(self) -> str:
        """Take one training step with a new model as in a round, and say how it went.

        Raises
        ------
        ValueError
            If the loss is not finite.
        """
        model = self.new_model().train()
        loss = cross_entropy(model, *next(self.private_batches(1)))
        loss.backward()  # type: ignore[no-untyped-call]
        self.private_optimizer(model.parameters(), server_round=1).step()
        if not loss.isfinite():
            raise ValueError(f"{self.model_name}: the loss of the first batch is {loss.item()}")
        return f"{num_parameters(model):,} numbers; the first batch has loss {loss.item():.3f}"

    def close(self) -> None:
        """Return the model objects to the pool. Their weights were stored before."""
        if "model" in vars(self):
            give_back(vars(self).pop("model"))
        if safeguard := vars(self).get("safeguard"):
            safeguard.close()

    @property
    def release_entry(self) -> dict[str, float]:
        """What a release adds to the node's ledger; nothing without noise."""
        return {}

    @property
    def ledger_entries(self) -> list[dict[str, float]]:
        """What a training and a release add to the node's ledger."""
        entries = self.local.ledger_entry(self.num_examples), self.release_entry
        return [entry for entry in entries if entry]

    @property
    def num_examples(self) -> int:
        """D_n, the number of private training samples."""
        return self.data.sizes[0]

    @property
    def trainable(self) -> Tensor:
        """Positions of the training samples that train the evaluated model: by default all."""
        return torch.arange(self.num_examples)

    def generator(self, purpose: str, server_round: int) -> np.random.Generator:
        """Return the client's generator for one purpose in one round."""
        return random_generator(self.run.plan.seed, purpose, server_round, self.partition_id)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return an array of a message as a tensor on the device."""
        return torch.from_numpy(array).to(self.device)

    @cached_property
    def safeguard(self) -> Safeguard | None:
        """The private model beside the method's, if the run asks for one."""
        if not self.run.plan.safeguard.is_on or self.run.strategy == LOCAL:
            return None
        client, steps = self.private_client, self.gradient_steps
        return Safeguard(client, self.context, self.run, self.memory, self.data, steps)

    @property
    def private_client(self) -> "type[PersonalClient]":
        """The class of the client that trains a safeguard's private model: that of `local`."""
        return PersonalClient

    # ---- Tools of methods ------------------------------------------------------------

    def do(self, job: Job) -> Any:
        """Run a job, together with equal jobs of other clients if the client is in a cohort.

        Parameters
        ----------
        job : TrainJob or PredictJob
            Steps of a training, which are counted, or a prediction.

        Returns
        -------
        float or Tensor
            The mean loss of the training, or the logits (P, K).

        Raises
        ------
        DivergedError
            If a loss or a weight is not finite. Where the node hides that, the training is undone.
        """
        if isinstance(job, PredictJob):
            return result_of(job)
        job = replace(job, batches=self.gradient_steps.counted(job.batches))
        if self.policy.hides_divergence:
            return undone_if_it_diverges(job, result_of, self.report_divergence)
        return result_of(job)

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return a model's logits on images, (P, K) float32. The model is in evaluation mode."""
        logits: Tensor = self.do(PredictJob(model, images))
        return logits

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

    def train_locally(
        self,
        server_round: int,
        loss: Loss = cross_entropy,
        beside: Iterator[Batch] | None = None,
        model: nn.Module | None = None,
        replaced: Collection[nn.Parameter] | None = None,
        parameters: Iterable[nn.Parameter] | None = None,
    ) -> float:
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
        replaced : collection of nn.Parameter, optional
            Parameters whose momentum is not kept; by default the `replaced_parameters`.
        parameters : iterable of nn.Parameter, optional
            The parameters to train; by default all of the model.

        Returns
        -------
        float
            Mean loss over all samples seen.
        """
        model = self.model if model is None else model
        parameters = model.parameters() if parameters is None else parameters
        optimizer = self.private_optimizer(parameters, server_round)
        replaced = self.replaced_parameters(model) if replaced is None else replaced
        run_id = self.request.run_id
        gradients = self.local.gradients(model, self.num_examples, server_round, run_id)
        batches = self.private_batches(server_round)
        if beside is not None:
            # The private batches come first because they end and the others do not.
            batches = ((*own, *other) for own, other in zip(batches, beside, strict=False))
        with self.kept_momentum(optimizer, model, replaced):
            mean_loss: float = self.do(TrainJob(model, loss, optimizer, batches, gradients))
        return mean_loss

    @contextmanager
    def kept_momentum(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        replaced: Collection[nn.Parameter] = (),
    ) -> Iterator[None]:
        """Load the momentum of earlier trainings before a training, and store it afterwards.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
            The optimizer of the training.
        model : nn.Module
            The network that has its parameters.
        replaced : collection of nn.Parameter, optional
            Parameters whose momentum starts anew and is not stored.
        """
        names = {own: f"model/{name}" for name, own in self.model.named_parameters()}
        if model is not self.model:
            kind = type(model).__name__
            names = {own: f"{kind}/{name}" for name, own in model.named_parameters()} | names
        self.memory.load_momentum(optimizer, names, replaced)
        yield
        self.memory.save_momentum(optimizer, names, replaced)

    def features(self) -> Tensor:
        """Return the features of the training samples by `model`, shape (D_n, d)."""
        return self.predict(FeatureExtractor(self.model), self.data.train_images)

    @property
    def fine_tune_epochs(self) -> int:
        """Epochs of training on private data before an evaluation."""
        return self.run.training.fine_tune_epochs

    @property
    def fine_tuned(self) -> nn.Module:
        """What is trained before an evaluation: the client's model."""
        return self.model

    def fine_tune_for_evaluation(self, server_round: int) -> None:
        """Train the model for `fine_tune_epochs`. The result is evaluated, not kept."""
        if not (epochs := self.fine_tune_epochs):
            return
        trained, size = self.trainable, self.run.training.batch_size
        generator = self.generator("fine-tuning-batches", server_round)
        optimizer = self.private_optimizer(self.fine_tuned.parameters(), server_round)

        def train(epochs: int = 1) -> None:
            positions = epoch_batches(len(trained), size, epochs, generator)
            self.fine_tune(optimizer, self.batches_at(trained[chosen] for chosen in positions))

        if self.run.training.fine_tune_early_stopping and len(self.data.validation_labels):
            keep_best_epoch(self.fine_tuned, train, epochs, self.validation_rank)
        elif self.policy.hides_divergence:
            train_unless_it_diverges(self.fine_tuned, lambda: train(epochs), self.report_divergence)
        else:
            train(epochs)

    def fine_tune(self, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> None:
        """Train the model before it is evaluated, and count the steps."""
        train_on(self.fine_tuned, cross_entropy, optimizer, self.gradient_steps.counted(batches))

    def private_batches(self, server_round: int) -> Iterator[Batch]:
        """Yield a round's private batches of images and labels."""
        trained = self.trainable
        positions = self.private_positions(server_round, len(trained))
        return self.batches_at(trained[chosen] for chosen in positions)

    def batches_at(self, positions: Iterator[Tensor]) -> Iterator[Batch]:
        """Yield private batches of images and labels by their positions."""
        data, mixed = self.data, self.local.mixed_enough(positions)
        return gathered(mixed, data.train_images, data.train_labels)

    def private_positions(self, server_round: int, num_samples: int) -> Iterator[Tensor]:
        """Yield the positions of a round's batches.

        Parameters
        ----------
        server_round : int
            Round of the run. Batches depend on it.
        num_samples : int
            Number of samples to draw from.
        """
        return iter(self.local.mixed_enough(self.local.positions(num_samples, server_round)))

    def public_images(self, server_round: int) -> Tensor:
        """Return the public subset of a round, shape (P, channels, height, width)."""
        drawn_in = self.request.drawn_in(server_round)
        return public_samples(self.data_plan, self.run.plan.public_size, drawn_in)
