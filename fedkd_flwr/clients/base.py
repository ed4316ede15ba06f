"""The base class of all clients: what a method author writes, and the tools for it.

A method overrides `PersonalClient.train`. It also overrides `evaluated` if it evaluates another
model than the one the client keeps. Everything else of a message is its `Session`.
"""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkd_flwr.clients.evaluating import Evaluated as Evaluated
from fedkd_flwr.clients.messages import Arrays as Arrays
from fedkd_flwr.clients.messages import Request
from fedkd_flwr.clients.messages import TrainReply as TrainReply
from fedkd_flwr.clients.session import Session as Session
from fedkd_flwr.data.clients import ClientData
from fedkd_flwr.memory import State as MethodState
from fedkd_flwr.models.features import FeatureExtractor
from fedkd_flwr.models.model_pool import Architecture
from fedkd_flwr.training.jobs import Job, PredictJob, TrainJob, result_of, undone_if_it_diverges
from fedkd_flwr.training.loop import Batch, Loss, build_optimizer
from fedkd_flwr.training.losses import cross_entropy, parameters_of, relative_distance
from strategies.core.method_record import refuse_near_names
from strategies.core.metrics import metric_name
from strategies.core.randomness import random_generator

EVALUATED = "write `evaluated(received, server_round)`, which returns "

HOOKS_BEFORE = {
    "prepare_evaluation": f"{EVALUATED}`Evaluated(self.model, metrics)`",
    "classifier": f"{EVALUATED}`Evaluated(classifier)`",
    "exported_model": f"{EVALUATED}`Evaluated(self.model, exported=make_model)`",
    "fine_tuned": f"{EVALUATED}`Evaluated(fine_tuned)`",
    "fine_tune": f"{EVALUATED}`Evaluated(self.model, fine_tuned_by=loss)`",
    "fine_tune_epochs": f"{EVALUATED}`Evaluated(self.model, fine_tune_epochs=epochs)`",
    "counted_when": "call `self.session.evaluate(moment)`",
    "architecture": "override `architectures`, with the client's own first",
    "initial_draw": "override `model`, and fill it by `self.session.new_model(draw)`",
    "private_positions": "override `private_batches`",
    "needs_head": 'write `needs_layer = "head"`',
    "needs_body": 'write `needs_layer = "body"`',
}
"""Hooks of earlier versions, and what to write instead."""


def refuse_old_names(client: type) -> None:
    """Refuse a client class with hooks that are not called any more."""
    for name, instead in HOOKS_BEFORE.items():
        if name in vars(client):
            raise TypeError(f"{client.__name__}.{name} is no hook any more: {instead}")
    if "__init__" in vars(client) and len(inspect.signature(client).parameters) != 1:
        raise TypeError(
            f"{client.__name__} is made from a session alone: write `def __init__(self, session)`; "
            "its context and run are `session.context` and `session.run`"
        )


class PersonalClient(NumPyClient):
    """A client that trains its own model on its own data: the baseline `local`.

    Parameters
    ----------
    session : Session
        The message that it serves, with data, memory and settings of the run.

    Attributes
    ----------
    settings : Settings
        The settings of the method.
    device : str
        Where model and data are.
    partition_id : int
        The client's number.
    """

    keeps_model = True
    """Whether the client keeps its model between rounds instead of receiving one in each round."""

    needs_layer = ""
    """The layers that the method uses: ``head``, the last one by its input, or ``body``, those
    below; empty for none. Models without are refused."""

    @dataclass(kw_only=True)
    class State(MethodState):
        """What the client keeps besides its model and momentum; methods add fields."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse names of old versions, and mistyped ones."""
        super().__init_subclass__(**arguments)
        refuse_old_names(cls)
        refuse_near_names(cls)

    def __init__(self, session: Session) -> None:
        self.session = session
        self.settings: Any = session.settings
        self.device, self.partition_id = session.device, session.partition_id

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; while a message is served, none that would be lost after it."""
        if "session" in vars(self) and self.session.request.server_round and name != "model":
            raise AttributeError(
                f"`{name}` would not survive this message; declare it in the state, or use a "
                "local variable"
            )
        super().__setattr__(name, value)

    # ---- What a client has -----------------------------------------------------------

    @property
    def state(self) -> Any:
        """The client's state. What is assigned to its fields is kept with a train message."""
        return self.session.state

    @property
    def data(self) -> ClientData:
        """The client's data and the public pool, on the device."""
        return self.session.data

    @cached_property
    def model(self) -> nn.Module:
        """The client's stored model, or a new one with the initial weights of its partition-id."""
        return self.session.recalled_model()

    # ---- Hooks that a method may override --------------------------------------------

    def begin(self) -> State:
        """Return the state before the first training."""
        return self.State()

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

    def evaluated(self, received: Arrays, server_round: int) -> Evaluated:
        """Return what is evaluated: by default `model`, as it is. Nothing of it is kept.

        Parameters
        ----------
        received : dict of str to ndarray
            Arrays of the message; empty if the client is evaluated after its training.
        server_round : int
            Round of the run, from 1.
        """
        return Evaluated(self.model)

    def replaced_parameters(self, model: nn.Module) -> Collection[nn.Parameter]:
        """Return the parameters of a trained model that the server replaces before the next round.

        Momentum lives as long as the weights it belongs to: theirs starts anew.
        """
        return ()

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """The architectures of all networks that the client trains, that of `model` first.

        It is trained in a cohort only if it has any, and none of them draws random numbers.
        """
        return (self.session.architecture,)

    @classmethod
    def trained_parts(cls, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that are trained together, by the name of the part of the model."""
        return {"model": list(model.parameters())}

    @property
    def trainable(self) -> Tensor:
        """Positions of the training samples that train the evaluated model: by default all."""
        return torch.arange(self.data.num_train)

    # ---- Tools of methods ------------------------------------------------------------

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
        session, model = self.session, self.model if model is None else model
        parameters = model.parameters() if parameters is None else parameters
        optimizer = session.local.optimizer(parameters, server_round)
        replaced = self.replaced_parameters(model) if replaced is None else replaced
        gradients = session.local.gradients(
            model, self.data.num_train, server_round, session.request.run_id
        )
        batches = self.private_batches(server_round)
        if beside is not None:
            # The private batches come first because they end and the others do not.
            batches = ((*own, *other) for own, other in zip(batches, beside, strict=False))
        with session.kept_momentum(optimizer, model, replaced):
            mean_loss: float = self.do(TrainJob(model, loss, optimizer, batches, gradients))
        return mean_loss

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
        job = replace(job, batches=self.session.gradient_steps.counted(job.batches))
        if not self.session.policy.hides_divergence:
            return result_of(job)
        report = self.session.local.report_divergence
        with undone_if_it_diverges(job.model, job.optimizers, report):
            return result_of(job)
        return 0.0

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return a model's logits on images, (P, K) float32. The model is in evaluation mode."""
        logits: Tensor = self.do(PredictJob(model, images))
        return logits

    def features(self) -> Tensor:
        """Return the features of the training samples by `model`, shape (D_n, d)."""
        return self.predict(FeatureExtractor(self.model), self.data.train_images)

    def private_batches(self, server_round: int) -> Iterator[Batch]:
        """Yield a round's private batches of images and labels."""
        trained, session = self.trainable, self.session
        positions = session.private_positions(server_round, len(trained))
        return session.batches_at(trained[chosen] for chosen in positions)

    def optimizer(
        self,
        parameters: Iterable[nn.Parameter],
        rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> torch.optim.Optimizer:
        """Build the optimizer named in the run config."""
        name = self.session.run.training.optimizer
        return build_optimizer(name, parameters, rate, momentum, weight_decay)

    def generator(self, purpose: str, server_round: int) -> np.random.Generator:
        """Return the client's generator for one purpose in one round, known by the run's seed.

        Training batches are drawn by `session.private_generator`, secret for a node's own data.
        """
        seed = self.session.run.plan.seed
        return random_generator(seed, purpose, server_round, self.partition_id)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return an array of a message as a tensor on the device."""
        return torch.from_numpy(array).to(self.device)

    # ---- Flower's NumPyClient --------------------------------------------------------

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's properties: its model, data and public set."""
        return self.session.properties

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Serve a train message whose arrays are named in ``config["names"]``."""
        reply = self.session.serve(Request.of_list(parameters, config))
        metrics = {**reply.metrics, "names": list(reply.arrays)}
        return list(reply.arrays.values()), self.data.num_train, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Serve an evaluation message whose arrays are named in ``config["names"]``."""
        metrics = self.session.serve_evaluation(Request.of_list(parameters, config)).metrics
        loss, total = (metrics.get(metric_name("own", "test", name)) for name in ("loss", "total"))
        return math.nan if loss is None else loss, int(total or 0), dict(metrics)
