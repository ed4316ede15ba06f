"""FedAMP: clients train towards a mixture of the models most similar to their own.

Yutao Huang, Lingyang Chu, Zirui Zhou, Lanjun Wang, Jiangchuan Liu, Jian Pei, Yong Zhang,
*Personalized Cross-Silo Federated Learning on Non-IID Data*, AAAI 2021, arXiv:2007.03797.

The server mixes ``u_i = (1 - Σ_j a A'(d_ij)) w_i + a Σ_j A'(d_ij) w_j`` over the other clients j,
with ``d_ij = ||w_i - w_j||²`` and ``A(x) = 1 - exp(-x / sigma)``: similar models get larger
weights. Client i then minimizes ``F_i(w) + lambda / (2 a) * ||w - u_i||²``.

Differences from the paper
--------------------------
- If the weights of the others sum to more than 1, they are scaled to sum 1 and w_i gets weight 0. A
  negative weight would push the client away from its own model.
- A client starts from u_i, where the proximal term is 0, and trains for the run's epochs with the
  run's optimizer. The paper asks for the minimum and does not specify the start.
- a and lambda / a are constant; in the paper a decreases over the rounds, so lambda / a increases.
- The defaults of a, sigma and lambda are ours: the paper's suit its networks and its large a.
- In the first round, and until its first reply, a client receives the initial model. The paper
  leaves the start open.
- Distances are between parameters; batch-normalization statistics are mixed with the same weights.
- Accuracy is that of the model after local training, w_i, and not of u_i.
- With ``mixing = "median"`` or ``"trimmed-mean"`` u_i is that of the models with these weights.
- Clients may be sampled; the server uses the last model of each client. In the paper all clients
  participate in each round.
- HeurFedAMP, the variant with cosine similarity, is not implemented.
- A new client's weights are computed over the last models of the clients in training and its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.pair_matrix import PairMatrix
from strategies.core.plan import Settings
from strategies.core.replies import Arrays, Reply
from strategies.core.search import SearchRange
from strategies.parameters import (
    AVERAGES,
    LibraryState,
    LibraryStrategy,
    Model,
    gram_matrix,
    squared_distances,
)


class FedAMPSettings(Settings):
    """Settings of FedAMP.

    Attributes
    ----------
    attention_step : float
        a, the server's step size; ``a / sigma`` is the weight of another client with an identical
        model.
    sigma : float
        Squared distance between models at which that weight has fallen to 1/e.
    regularization_weight : float
        lambda of the proximal term ``lambda / (2 a) ||w_i - u_i||²`` on the clients.
    """

    table = "fedamp"
    attention_step: Annotated[float, SearchRange(0.01, 10.0, log=True)] = Field(default=0.05, gt=0)
    sigma: Annotated[float, SearchRange(0.3, 300.0, log=True)] = Field(default=1.0, gt=0)
    regularization_weight: Annotated[float, SearchRange(0.001, 3.0, log=True)] = Field(
        default=0.01, ge=0
    )


def attention_weights(
    distances: NDArray[np.float64], step: float, sigma: float
) -> NDArray[np.float64]:
    """Return the weights of u: ``a A'(d_ij)`` off the diagonal, and the rest of 1 on it.

    Parameters
    ----------
    distances : ndarray
        d, shape (R, R), squared distances.
    step, sigma : float
        a and sigma; ``A'(x) = exp(-x / sigma) / sigma``.

    Returns
    -------
    ndarray
        Shape (R, R), rows on the simplex: receiver, giver.
    """
    others = step * np.exp(-distances / sigma) / sigma
    np.fill_diagonal(others, 0.0)
    others /= np.maximum(others.sum(axis=1, keepdims=True), 1.0)
    return others + np.diag(1.0 - others.sum(axis=1))


@dataclass(frozen=True)
class FedAMPState(LibraryState):
    """The clients' last models, and how they are mixed.

    Attributes
    ----------
    attention : PairMatrix
        Weights of u, (N, N); a client without a model on the server has weight 1 on itself.
    """

    attention: PairMatrix


class FedAMP(LibraryStrategy):
    """FedAMP's server (Algorithm 1)."""

    paper = "Huang et al. 2021"
    dp_sgd = True
    color_family = "hypcluster"
    settings_type = FedAMPSettings
    settings: FedAMPSettings
    state: FedAMPState

    def begin(self, initial: Arrays) -> FedAMPState:
        """Start with weight 1 of each client on itself."""
        identity = PairMatrix.identity(self.plan.num_clients)
        return FedAMPState(dict(initial), library={}, attention=identity)

    def grown(self) -> FedAMPState:
        """Give clients that join weight 1 on themselves."""
        attention = self.state.attention.grown(self.plan.num_clients, diagonal=1)
        return replace(self.state, attention=attention)

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> FedAMPState:
        """Store the models and recompute the weights among all stored models."""
        library = self.library_with(models)
        attention = self.state.attention.with_members(library)
        weights = self.weights_among(list(library.values()))
        return replace(
            self.state, library=library, attention=attention.changed(library, library, weights)
        )

    def weights_among(self, models: Sequence[Model]) -> NDArray[np.float64]:
        """Return the weights of u among some clients' models, shape (R, R)."""
        distances = squared_distances(gram_matrix(models))
        return attention_weights(distances, self.settings.attention_step, self.settings.sigma)

    def welcome(self, step: int, replies: dict[int, Reply]) -> FedAMPState:
        """Compute each new client's weights on the last models of the training clients."""
        new = self.models_in(replies)
        attention = self.state.attention.with_members(new)
        givers = self.state.library.keys() & self.trained
        library = {n: model for n, model in self.state.library.items() if n in givers}
        for n, model in new.items():
            weights = self.weights_among([*library.values(), model])
            attention = attention.changed([n], [*library, n], weights[-1:])
        return replace(self.state, library=self.library_with(new), attention=attention)

    def model_for(self, partition_id: int) -> Model:
        """Return u_i, or the initial model before the client's first reply."""
        library = self.state.library
        if partition_id not in library:
            return self.state.model
        (weights,) = self.state.attention.at([partition_id], library)
        return AVERAGES[self.plan.mixing](list(library.values()), weights)

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return the weights of u as ``attention``."""
        return self.state.attention.named("attention")
