"""Base of methods whose clients exchange model parameters: send, check, average, mix.

A model is sent as flat vectors, one per kind: ``weights`` (d,), with batch normalization
``buffers`` (b,), and in an architecture search ``alphas`` (a,). Only clients know which part of a
vector belongs to which layer.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from strategies.base import PersonalizedStrategy
from strategies.core.declarations import BUFFERS, MODEL_SENT
from strategies.core.method_record import Need
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.mixing import (
    MIXINGS,
    Mix,
    require_weights,
    weighted_mean,
    with_clipped_updates,
)
from strategies.core.plan import Settings
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.settings_groups import ANY_ON_NODES
from strategies.core.state import PairMatrix, State
from strategies.method import Results, ServerModels

Model = dict[str, NDArray[Any]]  # a model in network format: float32 vectors by kind

SHARED_BY_DIFFERENT = "mlp"
"""Architecture of a shared model if clients' own architectures differ and none is set."""

STRETCH = 2**16  # number of entries of each model that are processed at once


class SharedModelSettings(Settings):
    """Settings of methods whose clients train a shared model besides their own."""

    shared_model: Annotated[str, ANY_ON_NODES] = ""
    """Architecture of the shared model, the same for all clients. Empty for that of the clients'
    own models; ``mlp`` if these have several."""

    def resolved(self, models: Sequence[str]) -> Self:
        """Return the settings with an architecture for the shared model, of the clients' own."""
        common = models[0] if len(set(models)) == 1 else SHARED_BY_DIFFERENT
        return self.model_copy(update={"shared_model": self.shared_model or common})


def mean_model(models: Sequence[Model], weights: NDArray[np.float64]) -> Model:
    """Average models one by one, without a second copy of all of them, by weights (R,)."""
    shares = weights / weights.sum()
    mean: Model = {}
    for model, share in zip(models, shares, strict=True):
        for kind, vector in model.items():
            weighted = vector * vector.dtype.type(share)
            mean[kind] = np.add(mean[kind], weighted, out=weighted) if kind in mean else weighted
    return mean


def mix_models(weights: NDArray[Any], models: Sequence[Model], mix: Mix = weighted_mean) -> Model:
    """Mix S models into R by weights (R, S): row = receiver, column = giver."""
    return {kind: mix(weights, rows) for kind, rows in stacked(models).items()}


def mixed_model(models: Sequence[Model], weights: NDArray[np.float64], mix: Mix) -> Model:
    """Mix models into one, with weights (R,), by a rule of `strategies.core.mixing`."""
    return {kind: rows[0] for kind, rows in mix_models(weights[None], models, mix).items()}


AVERAGES: dict[str, Callable[[Sequence[Model], NDArray[np.float64]], Model]] = {
    "mean": mean_model,
    "median": partial(mixed_model, mix=MIXINGS["median"]),
    "trimmed-mean": partial(mixed_model, mix=MIXINGS["trimmed-mean"]),
}
"""The averages of R models with weights (R,), by the names of `mixing`."""


def stacked(models: Sequence[Arrays]) -> Model:
    """Stack the vectors of R models by kind, (R, length)."""
    return {kind: np.stack([model[kind] for model in models]) for kind in models[0]}


def gram_matrix(models: Sequence[Model]) -> NDArray[np.float64]:
    """Return the inner products of R models' parameters after subtracting their mean, (R, R).

    Distances do not depend on the origin, and without cancellation they are exact. Buffers are
    ignored.
    """
    products = np.zeros((len(models), len(models)))
    for kind in models[0].keys() - {BUFFERS}:
        # Part by part, without a second copy of all models.
        for start in range(0, len(models[0][kind]), STRETCH):
            rows = np.stack([model[kind][start : start + STRETCH] for model in models])
            rows -= rows.mean(axis=0)
            products += rows @ rows.T
    return products


def squared_distances(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``||w_i - w_j||²`` for all pairs from the inner products, (R, R), at least 0."""
    norms = np.diag(products)
    return np.maximum(norms[:, None] + norms - 2 * products, 0.0)


def step_towards(model: Model, mean: Model, rate: float) -> Model:
    """Return ``(1 - rate) model + rate mean``, which is exactly the mean at rate 1.

    Buffers are those of the mean, since extrapolation could make a variance negative.
    """
    if rate == 1:
        return mean
    return {
        kind: vector if kind == BUFFERS else model[kind] + rate * (vector - model[kind])
        for kind, vector in mean.items()
    }


def num_parameters(model: Model) -> int:
    """Count the trained parameters of a model."""
    return sum(len(vector) for kind, vector in model.items() if kind != BUFFERS)


@dataclass(frozen=True)
class ParameterState(State):
    """The global model."""

    model: Model
    """The global model."""


class ParameterStrategy(PersonalizedStrategy):
    """A strategy whose clients reply with the parameters of one architecture.

    Without overrides it is FedAvg: one global model, the mean of the clients' models weighted by
    the training samples that they reported when they joined. A method overrides `model_for` (the
    model that a client receives), `extra_parts` and `extra_expected_arrays` (further arrays), and
    `aggregate_models`.
    """

    record = PersonalizedStrategy.record.derived(
        exchanged="parameters",
        needs=(Need.ONE_ARCHITECTURE,),
        averages_parameters=True,
        evaluates_trained_model=False,
        evaluates=("trained",),
        sends=MODEL_SENT,
        train_metrics=(TRAIN_LOSS,),
    )
    state: ParameterState

    def begin(self, initial: Arrays) -> ParameterState:
        return ParameterState(dict(initial))

    # ---- Hooks of parameter methods --------------------------------------------------

    def model_for(self, partition_id: int) -> Model:
        """Return the model that one client receives for training and evaluation."""
        return self.state.model

    def extra_parts(self, partition_id: int) -> Arrays:
        """Return the arrays that one client receives besides its model before training."""
        return {}

    def extra_expected_arrays(self) -> dict[str, ExpectedArray]:
        """Return the specification of the arrays besides the model in a train reply."""
        return {}

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> ParameterState:
        """Return the state after a round, from the repliers' models by ascending partition-id."""
        return replace(self.state, model=self.average(models))

    def sent_to(self, reply: Reply) -> Arrays:
        """Return the arrays that a reply's arrays are updates of, and clipped; others are not."""
        return self.model_for(reply.partition_id)

    # ---- Tools for methods -----------------------------------------------------------

    @property
    def architecture(self) -> str:
        """The architecture of the model that is sent; empty for the first of the run."""
        return ""

    def models_in(self, replies: Mapping[int, Reply]) -> dict[int, Model]:
        """Return the model of each reply, by partition-id."""
        kinds = self.state.model
        return {n: {kind: reply.arrays[kind] for kind in kinds} for n, reply in replies.items()}

    def layers(self, model: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sent model by name, in the order of PyTorch's ``state_dict``.

        They are parts of its vectors: whoever writes to them changes the model. Arrays of kinds
        that it lacks are left out.
        """
        assert self.server_models
        layout = self.server_models.layout(self.architecture, self.shared_layers(self.settings))
        left, named = dict(model), {}
        for name, (kind, shape) in layout.items():
            if kind in left:
                own, left[kind] = np.split(left[kind], [math.prod(shape)])
                named[name] = own.reshape(shape)
        return named

    def average(self, models: Mapping[int, Model]) -> Model:
        """Average the models of some clients by the run's `mixing`."""
        return AVERAGES[self.plan.mixing](list(models.values()), self.weights_of(models))

    # ---- Hooks of every strategy -----------------------------------------------------

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        return {**self.model_for(partition_id), **self.extra_parts(partition_id)}

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the client its model; nothing if it is evaluated right after it has trained."""
        return {} if self.record.evaluates_trained_model else self.model_for(partition_id)

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        """Require a model like the global one, and the extra parts."""
        return {**expected_model(self.state.model), **self.extra_expected_arrays()}

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Clip updates of parameters to `update_cap` times the median norm."""
        return with_clipped_updates(replies, self.sent_to, self.plan.update_cap)

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ParameterState:
        return self.aggregate_models(server_round, self.models_in(replies))

    def global_model(self) -> Arrays:
        return self.state.model


class SharedModelStrategy(ParameterStrategy):
    """A strategy whose clients share the parameters of one model and keep a private model.

    The shared model is FedAvg's global model. Private models may differ in architecture, are never
    sent, and are evaluated.
    """

    record = ParameterStrategy.record.derived(
        exchanged="parameters of a shared model",
        needs=(),
        settings_type=SharedModelSettings,
        evaluates_trained_model=True,
        evaluates=(),
    )
    settings: SharedModelSettings
    server_models: ServerModels

    @property
    def architecture(self) -> str:
        return self.settings.shared_model

    def begin(self, initial: Arrays) -> ParameterState:
        return super().begin(self.server_models.initial_shared(self.architecture))


@dataclass(frozen=True)
class LibraryState(ParameterState):
    """The initial model, and the last model of every client."""

    library: dict[int, Model]
    """The last model of each client that has replied, by ascending partition-id."""


class LibraryStrategy(ParameterStrategy):
    """A strategy that stores the last model of every client.

    Clients continue with their own models and are evaluated after training. The server's memory
    grows by one model per client: 6.7 MB with the model `cnn`, or 6.7 GB with 1,000 clients. Such
    methods suit cross-silo learning with few clients.
    """

    record = ParameterStrategy.record.derived(evaluates_trained_model=True, evaluates=())
    state: LibraryState

    def begin(self, initial: Arrays) -> LibraryState:
        return LibraryState(dict(initial), library={})

    def sent_to(self, reply: Reply) -> Arrays:
        """Return the client's stored model, from which it continued, or the initial one."""
        return self.state.library.get(reply.partition_id, self.state.model)

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> LibraryState:
        """Replace the stored models of the repliers."""
        return replace(self.state, library=self.library_with(models))

    def library_with(self, models: Mapping[int, Model]) -> dict[int, Model]:
        """Return the library with other models of some clients, by ascending partition-id."""
        return dict(sorted({**self.state.library, **models}.items()))


def expected_model(model: Mapping[str, NDArray[Any]]) -> dict[str, ExpectedArray]:
    """Return the specification of every vector of a model like this one."""
    return {kind: ExpectedArray(vector.shape, str(vector.dtype)) for kind, vector in model.items()}


@dataclass(frozen=True)
class MixtureState(LibraryState):
    """The clients' last models, and how they are mixed."""

    attention: PairMatrix
    """Weights of the mixtures, (N, N), rows on the simplex; a client without a model on the server
    has weight 1 on itself."""


class MixtureStrategy(LibraryStrategy):
    """Sends each client a mixture of all clients' last models.

    A method overrides `weights_among`. In the first round, and until its first reply, a client
    receives the initial model.
    """

    matrix_name: ClassVar[str]
    """Name of the weights in the run directory."""

    record = LibraryStrategy.record.derived(evaluates=("received",))
    state: MixtureState

    @abstractmethod
    def weights_among(self, models: Mapping[int, Model]) -> NDArray[np.float64]:
        """Return the weights of the mixtures among R clients' models, by partition-id.

        Shape (R, R), rows on the simplex: receiver, giver.
        """

    def _weights_among(self, models: Mapping[int, Model]) -> NDArray[np.float64]:
        """Return `weights_among` of a method, after checking what it promises."""
        hook, number = f"{type(self).__name__}.weights_among", len(models)
        return require_weights(hook, self.weights_among(models), (number, number), np.ones(number))

    def begin(self, initial: Arrays) -> MixtureState:
        identity = PairMatrix.identity(self.plan.num_clients)
        return MixtureState(dict(initial), library={}, attention=identity)

    def with_more_clients(self) -> MixtureState:
        """Give clients that join weight 1 on themselves."""
        attention = self.state.attention.with_more_clients(self.plan.num_clients, diagonal=1)
        return replace(self.state, attention=attention)

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> MixtureState:
        """Store the models and recompute the weights among all stored models."""
        library = self.library_with(models)
        attention = self.state.attention.with_members(library)
        weights = self._weights_among(library)
        return replace(
            self.state, library=library, attention=attention.changed(library, library, weights)
        )

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> MixtureState:
        """Compute each new client's weights on the last models of the training clients."""
        new = self.models_in(replies)
        attention = self.state.attention.with_members(new)
        givers = self.state.library.keys() & self.round.trained
        library = {n: model for n, model in self.state.library.items() if n in givers}
        for n, model in new.items():
            weights = self._weights_among({**library, n: model})
            attention = attention.changed([n], [*library, n], weights[-1:])
        return replace(self.state, library=self.library_with(new), attention=attention)

    def model_for(self, partition_id: int) -> Model:
        """Return the client's mixture, or the initial model before its first reply."""
        library = self.state.library
        if partition_id not in library:
            return self.state.model
        (weights,) = self.state.attention.at([partition_id], library)
        return AVERAGES[self.plan.mixing](list(library.values()), weights)

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        return {**self.mixture_sent_to(partition_id), **self.extra_parts(partition_id)}

    def sent_to(self, reply: Reply) -> Arrays:
        """Return the mixture from which the client started."""
        return self.mixture_sent_to(reply.partition_id)

    def mixture_sent_to(self, partition_id: int) -> Arrays:
        """Return the model that one client receives for training, computed once a round."""
        return self.round.once(partition_id, lambda: self.model_for(partition_id))

    def results(self) -> Results:
        return Results(matrices=self.state.attention.named(self.matrix_name))
