"""The models of a run on the server, for methods that predict or train there."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from logging import WARNING
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedkd_flwr.config import RunConfig
from fedkd_flwr.data.clients import public_pool, public_pool_size
from fedkd_flwr.data.public import public_subset
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.features import common_width, narrowest_width, with_common_width
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.models.model_pool import SHARED_DRAW
from fedkd_flwr.models.vectors import ALL, fill_from_vectors, matrix_shapes, model_vectors
from fedkd_flwr.training.feature_generator import draws, train_feature_generator
from fedkd_flwr.training.loop import (
    SGD,
    DivergedError,
    build_optimizer,
    gathered,
    predict_logits,
    random_batches,
    seeded,
    train_on,
)
from fedkd_flwr.training.losses import Distillation
from strategies.core.declarations import LayerChoice
from strategies.core.flower import log
from strategies.core.randomness import random_generator

Vectors = Mapping[str, NDArray[Any]]
"""A model as flat vectors by kind."""


class RunModels:
    """The models and the public data of a run; implements `ServerModels` of `strategies`."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        # One network per architecture is filled with the vectors of each client in turn.
        self._network = cache(self._build)
        # Requested for every client, for this round and the previous one.
        self.public_subset = lru_cache(maxsize=2)(self._public_subset)

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct architectures of the run."""
        return tuple(dict.fromkeys(self.run.models.models))

    @property
    def feature_width(self) -> int:
        """Number of features that enter the head, for methods that need the same of all clients."""
        return common_width(self.run.models, self.run.data.image_shape, self.run.data.num_classes)

    def narrowest(self, shared: str) -> int:
        """Return the smallest number of features of the run's models and of a shared one."""
        data = self.run.data
        return narrowest_width(self.run.models, shared, data.image_shape, data.num_classes)

    def initial(
        self, number: int = 0, name: str = "", layers: LayerChoice = ALL
    ) -> dict[str, NDArray[np.float32]]:
        """Return initial weights; draw 0 of the first architecture is the global model."""
        with seeded("cpu", self.run.plan.seed, "initial-weights", number):
            return model_vectors(self._build(name or self.names[0]), layers)

    def initial_shared(self, name: str = "", width: int = 0) -> dict[str, NDArray[np.float32]]:
        """Return initial weights of a shared model, drawn apart from those of private models."""
        with seeded("cpu", self.run.plan.seed, SHARED_DRAW):
            return model_vectors(self._build(name or self.names[0], width))

    def shapes(self, name: str) -> NDArray[np.int64]:
        """Return rows and columns of a model's matrices, (L, 2)."""
        return matrix_shapes(self._network(name))

    def predict(self, name: str, model: Vectors, server_round: int) -> NDArray[np.float32]:
        """Return a model's logits on the public samples of a round, shape (P, K)."""
        logits = predict_logits(
            self._filled(name, model), self._images(self.public_subset(server_round))
        )
        return logits.cpu().numpy()

    def fit(
        self,
        name: str,
        model: Vectors,
        samples: NDArray[np.int64],
        teacher: NDArray[Any],
        server_round: int,
        *,
        steps: int,
        batch_size: int,
        learning_rate: float,
        optimizer: str = "adam",
    ) -> dict[str, NDArray[Any]]:
        """Train a model towards a teacher, (n, K), on samples of the public set, (n,)."""
        if not steps:
            return dict(model)
        network, images = self._filled(name, model), self._images(samples)
        targets = torch.from_numpy(teacher).to(images.device).float()
        plan = self.run.plan
        generator = random_generator(plan.seed, "server-distillation", server_round)
        positions = itertools.islice(random_batches(len(images), batch_size, generator), steps)
        loss = Distillation(temperature=1.0, t_squared=False)
        descent = build_optimizer(optimizer, network.parameters(), learning_rate)
        try:
            with seeded(self.run.server_device, plan.seed, "server-distillation", server_round):
                train_on(network, loss, descent, gathered(positions, images, targets))
            # Weights can be finite and yet too large for predictions.
            if not predict_logits(network, images).isfinite().all():
                raise DivergedError("its predictions are not finite; lower the learning-rate")
        except DivergedError as error:
            log(WARNING, "Round %d: the distillation of %s failed, %s", server_round, name, error)
            return dict(model)
        return model_vectors(network)

    def train_feature_generator(
        self,
        generator: Vectors,
        models: Sequence[Vectors],
        shares: NDArray[Any],
        class_shares: NDArray[Any],
        server_round: int,
        *,
        diversity: float,
        steps: int,
        batch_size: int,
        learning_rate: float,
    ) -> dict[str, NDArray[Any]]:
        """Train FedGen's generator on the CPU, since heads are small."""
        heads = [copy.deepcopy(head_of(self._filled(self.names[0], m))).cpu() for m in models]
        tensors = {name: nn.Parameter(torch.tensor(part)) for name, part in generator.items()}
        draw = random_generator(self.run.plan.seed, "generated-on-server", server_round)
        train_feature_generator(
            tensors,
            heads,
            torch.from_numpy(shares).float(),
            draws(tensors, class_shares, batch_size, draw),
            diversity=diversity,
            steps=steps,
            learning_rate=learning_rate,
        )
        trained = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        if not all(np.isfinite(part).all() for part in trained.values()):
            log(WARNING, "Round %d: the training of the generator diverged", server_round)
            return dict(generator)
        return trained

    def train_prototypes(
        self,
        generator: Vectors,
        sent: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        margin: float,
        epochs: int,
        learning_rate: float,
    ) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Train FedTGP's generator of prototypes on the CPU, since it is small."""
        tensors = {
            name: torch.tensor(array, requires_grad=True) for name, array in generator.items()
        }
        pairs = [(torch.tensor(own), torch.tensor(classes)) for own, classes in sent]
        train_prototype_generator(
            tensors, pairs, margin=margin, epochs=epochs, learning_rate=learning_rate
        )
        trained = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        return trained, generated_prototypes(tensors).detach().numpy()

    def _images(self, samples: NDArray[np.int64]) -> Tensor:
        pool = public_pool(self.run.server_data_plan)
        return pool[torch.from_numpy(samples).to(pool.device)]

    def _public_subset(self, server_round: int) -> NDArray[np.int64]:
        """Return the positions of a round's samples in the public set, (P,)."""
        plan, pool = self.run.plan, public_pool_size(self.run.server_data_plan.settings)
        return public_subset(pool, plan.public_size, plan.seed, server_round)

    def _filled(self, name: str, model: Vectors) -> nn.Module:
        network = self._network(name)
        fill_from_vectors(network, model)
        return network

    def _build(self, name: str, width: int = 0) -> nn.Module:
        models, data = self.run.models, self.run.data
        network = build_model(name, data.image_shape, data.num_classes, models.search_space)
        width = width or models.feature_width
        if width:
            with_common_width(network, width)
        return network.to(self.run.server_device)


def generated_prototypes(generator: Mapping[str, Tensor]) -> Tensor:
    """Return the global prototypes g(e), shape (K, d); see `strategies.fedtgp.FedTGPState`."""
    hidden = (generator["vectors"] @ generator["hidden"].T + generator["hidden-bias"]).relu()
    return hidden @ generator["output"].T + generator["output-bias"]


def margin_loss(prototypes: Tensor, sent: Tensor, classes: Tensor, margin: float) -> Tensor:
    """Return FedTGP's loss of prototypes (K, d) on those that a client sent, (M, d)."""
    # The square root has no gradient at 0.
    distances = ((sent[:, None] - prototypes[None]).square().sum(dim=-1) + 1e-12).sqrt()
    margins = margin * functional.one_hot(classes, len(prototypes))
    return functional.cross_entropy(-(distances + margins), classes)


def train_prototype_generator(
    generator: Mapping[str, Tensor],
    sent: Sequence[tuple[Tensor, Tensor]],
    *,
    margin: float,
    epochs: int,
    learning_rate: float,
) -> None:
    """Train a generator in place, with one step of gradient descent per client and epoch."""
    optimizer = SGD(generator.values(), learning_rate)
    for _ in range(epochs):
        for own, classes in sent:
            optimizer.zero_grad()
            loss = margin_loss(generated_prototypes(generator), own, classes, margin)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
