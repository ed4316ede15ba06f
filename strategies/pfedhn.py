"""pFedHN: a hypernetwork on the server generates the weights of every client.

Client i has an embedding v_i, and its weights are ``θ_i = h(v_i; φ)``. It trains them to ``θ̃_i``;
the server takes a gradient step on φ and v_i with the vector-Jacobian product
``(∂θ_i / ∂(φ, v_i))ᵀ (θ_i - θ̃_i)`` (Algorithm 1). h is a perceptron with one linear head per layer
of the client's model, here one head for the whole vector, which is the same.

Differences from the paper
--------------------------
- All clients start with the run's initial model: the head is zero and its bias holds these weights.
  The paper draws both, with the same variance for layers of any size.
- The paper samples one client per round. Here the products of all repliers are summed, so that a
  round with R repliers moves the hypernetwork about as far as R rounds of the paper.
- The norm of the summed gradient is bounded by 50 times the number of repliers, over hypernetwork
  and embeddings together; one replier can fill it. The authors' implementation bounds the one
  client's by 50. No weight decay.
- Only weights are generated; statistics of batch normalization are averaged as in FedAvg.
- The head has ``hidden-size`` parameters per weight of the client's model; momentum doubles that.
- Clients train as the run config says; the paper's 50 iterations are ``local-iterations = 50``.
- For a new client only its embedding is fitted, as in the paper's section on novel clients, and the
  hypernetwork is fixed. The step uses the client's own product.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import WEIGHTS
from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.core.state import named_arrays, padded, with_means
from strategies.parameters import Model, ParameterState, ParameterStrategy


@dataclass(frozen=True)
class Network:
    """A hypernetwork, or a gradient or velocity of one."""

    embeddings: NDArray[np.float32]
    """v, shape (N, e)."""
    weights: dict[int, NDArray[np.float32]]
    biases: dict[int, NDArray[np.float32]]
    """The layers below the head, from 0: shapes (h, inputs) and (h,)."""
    head: NDArray[np.float32]
    """Shape (d, h)."""
    head_bias: NDArray[np.float32]
    """Shape (d,)."""


@dataclass(frozen=True)
class PFedHNState(ParameterState):
    """The mean of the clients' models, and the hypernetwork."""

    network: Network
    velocity: Network
    """The hypernetwork with the clients' embeddings, and its momentum. Both are updated in place:
    the head alone has a hundred times the parameters of a client's model."""


class PFedHNSettings(Settings):
    """Settings of the hypernetwork."""

    table = "pfedhn"
    embedding_size: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """e, the length of a client's embedding; 0 for ``1 + N // 4`` as in the paper."""
    hidden_size: Annotated[int, ANY_ON_NODES] = Field(default=100, ge=1)
    """h, the number of units per hidden layer of the hypernetwork."""
    hidden_layers: Annotated[int, ANY_ON_NODES] = Field(default=3, ge=0)
    """Number of layers between the first layer and the heads of the hypernetwork."""
    learning_rate: Annotated[float, SearchRange(0.001, 0.1, log=True), ANY_ON_NODES] = Field(
        default=0.01, gt=0
    )
    """Step size on the hypernetwork and the embeddings."""
    momentum: Annotated[float, ANY_ON_NODES] = Field(default=0.9, ge=0, lt=1)
    """Momentum of the hypernetwork and the embeddings."""
    gradient_norm: Annotated[float, ANY_ON_NODES] = Field(default=50.0, gt=0)
    """Gradients of the hypernetwork are clipped to this norm, times the number of repliers."""


def new_network(
    settings: PFedHNSettings,
    num_clients: int,
    weights: NDArray[np.float32],
    generator: np.random.Generator,
) -> Network:
    """Draw a hypernetwork that generates the same weights (d,) for each of N clients."""
    inputs = settings.embedding_size or 1 + num_clients // 4
    embeddings = generator.standard_normal((num_clients, inputs), dtype=np.float32)
    hidden_weights: dict[int, NDArray[np.float32]] = {}
    biases: dict[int, NDArray[np.float32]] = {}
    for layer in range(settings.hidden_layers + 1):
        bound, size = 1 / np.sqrt(inputs), settings.hidden_size
        drawn = generator.uniform(-bound, bound, (size, inputs))
        hidden_weights[layer] = drawn.astype(np.float32)
        biases[layer] = generator.uniform(-bound, bound, size).astype(np.float32)
        inputs = size
    head = np.zeros((len(weights), inputs), dtype=np.float32)
    return Network(embeddings, hidden_weights, biases, head, np.array(weights))


def layer_inputs(network: Network, clients: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return the inputs of each layer for some clients, the head last; (R, inputs) each."""
    inputs = [network.embeddings[list(clients)]]
    last = len(network.weights) - 1
    for layer in range(last + 1):
        output = inputs[-1] @ network.weights[layer].T + network.biases[layer]
        inputs.append(output if layer == last else np.maximum(output, 0))
    return inputs


def generated_weights(network: Network, client: int) -> NDArray[np.float32]:
    """Return ``θ_i = h(v_i; φ)``, shape (d,)."""
    return network.head @ layer_inputs(network, [client])[-1][0] + network.head_bias


def vector_jacobian_product(
    network: Network, clients: Sequence[int], vectors: NDArray[np.float32]
) -> Network:
    """Return ``Σ_i (∂θ_i / ∂(φ, v))ᵀ u_i``, the gradient of ``Σ_i <u_i, θ_i>``.

    R distinct clients, vectors u (R, d). The gradient has the structure of the network.
    """
    inputs = layer_inputs(network, clients)
    upstream = vectors @ network.head
    weights: dict[int, NDArray[Any]] = {}
    biases: dict[int, NDArray[Any]] = {}
    for layer in reversed(range(len(network.weights))):
        weights[layer] = upstream.T @ inputs[layer]
        biases[layer] = upstream.sum(axis=0)
        upstream = upstream @ network.weights[layer]
        if layer:
            # The layer's inputs are outputs of the ReLU below it.
            upstream = upstream * (inputs[layer] > 0)
    embeddings = np.zeros_like(network.embeddings)
    embeddings[list(clients)] = upstream
    return Network(embeddings, weights, biases, vectors.T @ inputs[-1], vectors.sum(axis=0))


def cut_to_norm(gradient: Iterable[NDArray[np.float32]], norm: float) -> None:
    """Clip a gradient, in place, to a norm over all its arrays."""
    parts = list(gradient)
    squares = sum(map(_sum_of_squares, parts))
    factor = np.float32(min(1.0, norm / max(np.sqrt(squares), 1e-12)))
    for part in parts:
        part *= factor


def _sum_of_squares(part: NDArray[np.float32]) -> float:
    """Return ``Σ x²`` in double precision, without a copy of the array."""
    numbers = part.reshape(-1)
    return float(np.einsum("i,i", numbers, numbers, dtype=np.float64, casting="safe"))


class PFedHN(ParameterStrategy):
    """Sends each client its generated weights (Algorithm 1)."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="A. Shamsian, A. Navon, E. Fetaya, G. Chechik",
            title="Personalized Federated Learning using Hypernetworks",
            venue="ICML",
            year=2021,
            arxiv="2103.04628",
        ),
        settings_type=PFedHNSettings,
        dp_sgd=True,
        averages_parameters=False,
    )
    settings: PFedHNSettings
    state: PFedHNState

    def begin(self, initial: Arrays) -> PFedHNState:
        size, generator = self.plan.num_clients, random_generator(self.plan.seed, "hypernetwork")
        network = new_network(self.settings, size, initial[WEIGHTS], generator)
        velocity = copy.deepcopy(network)
        for part in named_arrays(velocity).values():
            part[:] = 0
        return PFedHNState(dict(initial), network, velocity)

    def with_more_clients(self) -> PFedHNState:
        """Give clients that join the mean of the embeddings, without momentum."""
        network, velocity, size = self.state.network, self.state.velocity, self.plan.num_clients
        return replace(
            self.state,
            network=replace(network, embeddings=with_means(network.embeddings, size)),
            velocity=replace(velocity, embeddings=padded(velocity.embeddings, size)),
        )

    def model_for(self, partition_id: int) -> Model:
        """Return the client's generated weights and the averaged other kinds."""
        weights = generated_weights(self.state.network, partition_id)
        return {**self.state.model, WEIGHTS: weights}

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> PFedHNState:
        """Average, and step on the hypernetwork with the repliers' summed products."""
        settings, clients, network = self.settings, list(models), self.state.network
        # The weights that were sent are generated again instead of stored.
        changes = np.stack([generated_weights(network, n) - models[n][WEIGHTS] for n in clients])
        gradient = vector_jacobian_product(network, clients, changes)
        parts = named_arrays(gradient)
        cut_to_norm(parts.values(), settings.gradient_norm * len(clients))
        rate, momentum = np.float32(settings.learning_rate), np.float32(settings.momentum)
        parameters, velocities = named_arrays(network), named_arrays(self.state.velocity)
        for name, part in parts.items():
            velocities[name] *= momentum
            velocities[name] += part
            parameters[name] -= np.multiply(velocities[name], rate, out=part)
        return replace(self.state, model=self.average(models))

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> PFedHNState:
        """Take a step on each new client's embedding only; the hypernetwork is fixed."""
        settings, network = self.settings, self.state.network
        velocity = self.state.velocity.embeddings
        for n, reply in replies.items():
            change = generated_weights(network, n) - reply.arrays[WEIGHTS]
            own = vector_jacobian_product(network, [n], change[None]).embeddings[n]
            cut_to_norm([own], settings.gradient_norm)
            velocity[n] = np.float32(settings.momentum) * velocity[n] + own
            network.embeddings[n] -= np.float32(settings.learning_rate) * velocity[n]
        return self.state
