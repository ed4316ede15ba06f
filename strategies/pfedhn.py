"""pFedHN: a hypernetwork on the server generates the weights of every client.

A. Shamsian, A. Navon, E. Fetaya, G. Chechik, *Personalized Federated Learning using
Hypernetworks*, ICML 2021, arXiv:2103.04628.

Client i has an embedding v_i, and its weights are ``θ_i = h(v_i; φ)``. It trains them to ``θ̃_i``;
the server takes a gradient step on φ and v_i with the vector-Jacobian product
``(∂θ_i / ∂(φ, v_i))ᵀ (θ_i - θ̃_i)`` (Algorithm 1). h is a perceptron with one linear head per layer
of the client's model, here one head for the whole vector, which is the same.

Differences from the paper
--------------------------
- All clients start with the run's initial model: the head is zero and its bias holds these weights.
  The paper draws both, with the same variance for layers of any size.
- The paper samples one client per round. Here the products of all repliers are averaged, with a
  larger step size.
- The gradient's norm is bounded by 50 as in the authors' implementation, over hypernetwork and
  embeddings together; no weight decay.
- Only weights are generated; statistics of batch normalization are averaged as in FedAvg.
- The head has ``hidden-size`` parameters per weight of the client's model; momentum doubles that.
- Clients train as the run config says; the paper's 50 iterations are ``local-iterations = 50``.
- For a new client only its embedding is fitted, as in the paper's section on novel clients, and the
  hypernetwork is fixed. The step uses the client's own product, without averaging.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.new_clients import padded, with_means
from strategies.core.plan import Settings
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, Reply
from strategies.core.search import SearchRange
from strategies.parameters import Model, ParameterStrategy

Network = dict[str, NDArray[np.float32]]
"""A hypernetwork: ``embeddings`` (N, e), ``weight-k`` and ``bias-k`` of its layers from 0,
``head`` (d, h) and ``head-bias`` (d,)."""


class PFedHNSettings(Settings):
    """Settings of the hypernetwork.

    Attributes
    ----------
    embedding_size : int
        e, the length of a client's embedding; 0 for ``1 + N // 4`` as in the paper.
    hidden_size : int
        h, the number of units per hidden layer of the hypernetwork.
    hidden_layers : int
        Number of layers between the first layer and the heads of the hypernetwork.
    learning_rate : float
        Step size on the hypernetwork and the embeddings.
    momentum : float
        Momentum of the hypernetwork and the embeddings.
    gradient_norm : float
        Gradients of the hypernetwork are clipped to this norm.
    """

    table = "pfedhn"
    embedding_size: int = Field(default=0, ge=0)
    hidden_size: int = Field(default=100, ge=1)
    hidden_layers: int = Field(default=3, ge=0)
    learning_rate: Annotated[float, SearchRange(0.01, 0.5, log=True)] = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    gradient_norm: float = Field(default=50.0, gt=0)


def new_network(
    settings: PFedHNSettings,
    num_clients: int,
    weights: NDArray[np.float32],
    generator: np.random.Generator,
) -> Network:
    """Draw a hypernetwork that generates the same weights for every client.

    Parameters
    ----------
    settings : PFedHNSettings
        Size of the network.
    num_clients : int
        N.
    weights : ndarray
        Shape (d,), the initial weights of all clients.
    generator : numpy.random.Generator
        Draws embeddings and hidden layers.
    """
    inputs = settings.embedding_size or 1 + num_clients // 4
    network = {"embeddings": generator.standard_normal((num_clients, inputs), dtype=np.float32)}
    for layer in range(settings.hidden_layers + 1):
        bound = 1 / np.sqrt(inputs)
        for name, shape in (
            ("weight", (settings.hidden_size, inputs)),
            ("bias", (settings.hidden_size,)),
        ):
            network[f"{name}-{layer}"] = generator.uniform(-bound, bound, shape).astype(np.float32)
        inputs = settings.hidden_size
    network["head"] = np.zeros((len(weights), inputs), dtype=np.float32)
    network["head-bias"] = np.array(weights)
    return network


def layer_inputs(network: Network, clients: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return the inputs of each layer for some clients, the head last; (R, inputs) each."""
    inputs = [network["embeddings"][list(clients)]]
    last = num_layers(network) - 1
    for layer in range(last + 1):
        output = inputs[-1] @ network[f"weight-{layer}"].T + network[f"bias-{layer}"]
        inputs.append(output if layer == last else np.maximum(output, 0))
    return inputs


def num_layers(network: Network) -> int:
    """Return the number of layers of a hypernetwork below its head."""
    return sum(name.startswith("weight-") for name in network)


def generated_weights(network: Network, client: int) -> NDArray[np.float32]:
    """Return ``θ_i = h(v_i; φ)``, shape (d,)."""
    return network["head"] @ layer_inputs(network, [client])[-1][0] + network["head-bias"]


def vector_jacobian_product(
    network: Network, clients: Sequence[int], vectors: NDArray[np.float32]
) -> Network:
    """Return ``Σ_i (∂θ_i / ∂(φ, v))ᵀ u_i``, the gradient of ``Σ_i <u_i, θ_i>``.

    Parameters
    ----------
    network : dict of str to ndarray
        The hypernetwork.
    clients : sequence of int
        R distinct partition-ids.
    vectors : ndarray
        u, shape (R, d).

    Returns
    -------
    dict of str to ndarray
        Gradient with the structure of the network.
    """
    inputs = layer_inputs(network, clients)
    gradient = {"head": vectors.T @ inputs[-1], "head-bias": vectors.sum(axis=0)}
    upstream = vectors @ network["head"]
    for layer in reversed(range(num_layers(network))):
        gradient[f"weight-{layer}"] = upstream.T @ inputs[layer]
        gradient[f"bias-{layer}"] = upstream.sum(axis=0)
        upstream = upstream @ network[f"weight-{layer}"]
        if layer:
            # The layer's inputs are outputs of the ReLU below it.
            upstream = upstream * (inputs[layer] > 0)
    gradient["embeddings"] = np.zeros_like(network["embeddings"])
    gradient["embeddings"][list(clients)] = upstream
    return gradient


def cut_to_norm(gradient: Network, norm: float) -> None:
    """Clip a gradient, in place, to a norm over all its parts."""
    squares = sum(map(_sum_of_squares, gradient.values()))
    factor = np.float32(min(1.0, norm / max(np.sqrt(squares), 1e-12)))
    for part in gradient.values():
        part *= factor


def _sum_of_squares(part: NDArray[np.float32]) -> float:
    """Return ``Σ x²`` in double precision, without a copy of the array."""
    numbers = part.reshape(-1)
    return float(np.einsum("i,i", numbers, numbers, dtype=np.float64, casting="safe"))


class PFedHN(ParameterStrategy):
    """Sends each client its generated weights (Algorithm 1).

    Attributes
    ----------
    network, velocity : dict of str to ndarray
        The hypernetwork with the clients' embeddings, and its momentum.
    """

    paper = "Shamsian et al. 2021"
    dp_sgd = True
    color_family = "fedkma"
    settings_type = PFedHNSettings
    averages_parameters = False
    kept = (*ParameterStrategy.kept, "network", "velocity")
    settings: PFedHNSettings
    network: Network
    velocity: Network

    def begin(self, initial: Arrays) -> None:
        """Draw the hypernetwork around the initial model."""
        super().begin(initial)
        generator = random_generator(self.plan.seed, "hypernetwork")
        weights = initial["weights"]
        self.network = new_network(self.settings, self.plan.num_clients, weights, generator)
        self.velocity = {name: np.zeros_like(part) for name, part in self.network.items()}

    def grow(self) -> None:
        """Give clients that join the mean of the embeddings, without momentum."""
        size = self.plan.num_clients
        self.network["embeddings"] = with_means(self.network["embeddings"], size)
        self.velocity["embeddings"] = padded(self.velocity["embeddings"], size)

    def model_for(self, partition_id: int) -> Model:
        """Return the client's generated weights and the averaged other kinds."""
        return {**self.model, "weights": generated_weights(self.network, partition_id)}

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> None:
        """Average, then step on the hypernetwork with the vector-Jacobian product."""
        super().aggregate_models(server_round, models)
        settings, clients = self.settings, list(models)
        # The weights that were sent are generated again instead of stored.
        changes = np.stack(
            [generated_weights(self.network, n) - models[n]["weights"] for n in clients]
        )
        product = vector_jacobian_product(self.network, clients, changes / np.float32(len(clients)))
        cut_to_norm(product, settings.gradient_norm)
        rate, momentum = np.float32(settings.learning_rate), np.float32(settings.momentum)
        # In place: the head alone has a hundred times the parameters of a client's model.
        for name, part in product.items():
            velocity = self.velocity[name]
            velocity *= momentum
            velocity += part
            self.network[name] -= np.multiply(velocity, rate, out=part)

    def welcome(self, step: int, replies: dict[int, Reply]) -> None:
        """Take a step on each new client's embedding only; the hypernetwork is fixed."""
        settings, embeddings = self.settings, self.network["embeddings"]
        velocity = self.velocity["embeddings"]
        for n, reply in replies.items():
            change = generated_weights(self.network, n) - reply.arrays["weights"]
            product = vector_jacobian_product(self.network, [n], change[None])
            own = product["embeddings"][n]
            cut_to_norm({"embedding": own}, settings.gradient_norm)
            velocity[n] = np.float32(settings.momentum) * velocity[n] + own
            embeddings[n] -= np.float32(settings.learning_rate) * velocity[n]
