"""FedFomo: clients weight the models of others by the decrease of their validation loss.

Michael Zhang, Karan Sapra, Sanja Fidler, Serena Yeung, Jose M. Alvarez, *Personalized Federated
Learning with First Order Model Optimization*, ICLR 2021, arXiv:2012.08565.

Client i receives the models of M other clients and weights each by ``max(0, (L_i(w_i) - L_i(w_j)) /
||w_j - w_i||)`` with its validation loss L_i. It scales the weights to sum 1, if any is positive,
and continues from ``w_i + Σ_j weight_j (w_j - w_i)`` (Eqs. 4 and 5). The server accumulates the
weights in a matrix of affinities and sends a client the models with the largest ones; with
probability epsilon it sends a random model instead.

Differences from the paper
--------------------------
- w_i is the client's last model. In the paper it is the model of the previous round, and the last
  model is a candidate.
- A client mixes before it trains, so it receives models of the previous round. This takes one
  message per direction and round instead of two.
- Affinities grow by the scaled weights. A client's reply changes only its own row, and so only what
  it receives itself.
- epsilon decreases by ``exploration-decay`` per round; the paper gives no rate.
- Batch-normalization statistics are mixed like parameters, but do not count in distances.
- A client whose own loss is not finite continues from the mean of the received models with a finite
  loss.
- Accuracy is that of the model after local training.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.new_clients import padded
from strategies.core.plan import Settings
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, Due, InvalidReplyError, Reply
from strategies.core.search import SearchRange
from strategies.core.state import named_arrays
from strategies.parameters import LibraryState, LibraryStrategy, model_due

WEIGHTS_OF_OTHERS = "weights-of-others"
"""Name of the array of weights of the received models, (M,), padded with 0."""


class FedFomoSettings(Settings):
    """Settings of FedFomo.

    Attributes
    ----------
    models_sent : int
        M, the number of models sent to a client; all of them if there are fewer.
    exploration : float
        epsilon in the first round: the share of these models that is drawn at random.
    exploration_decay : float
        Decrease of epsilon per round, down to 0.
    """

    table = "fedfomo"
    models_sent: Annotated[int, SearchRange(1, 10)] = Field(default=5, ge=1)
    exploration: float = Field(default=0.3, ge=0, le=1)
    exploration_decay: float = Field(default=0.05, ge=0, le=1)


def weights_of_others(
    loss: float, losses: NDArray[np.float64], distances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``max(0, (L(w_i) - L(w_j)) / ||w_j - w_i||)``, scaled to sum 1, or all 0.

    Parameters
    ----------
    loss : float
        L(w_i) of the client's own model. If it is not finite, all usable models get equal weights.
    losses, distances : ndarray
        L(w_j) and ||w_j - w_i||, shape (M,). A model is usable if both are finite and it differs
        from the client's own model.
    """
    is_usable = np.isfinite(losses) & np.isfinite(distances) & (distances > 0)
    if not np.isfinite(loss):
        return is_usable / max(is_usable.sum(), 1)
    gains = np.where(is_usable, loss - losses, 0.0) / np.where(is_usable, distances, 1.0)
    weights = np.maximum(gains, 0.0)
    return weights / weights.sum() if weights.sum() > 0 else weights


def chosen_models(
    affinities: NDArray[np.float64], size: int, epsilon: float, generator: np.random.Generator
) -> NDArray[np.intp]:
    """Return the positions of the models to send: the best ones, and some random ones.

    Parameters
    ----------
    affinities : ndarray
        Shape (R,), affinities of the receiving client to the candidates.
    size : int
        Number of models; all if there are no more.
    epsilon : float
        Probability that a model is drawn at random from the remaining ones.
    generator : numpy.random.Generator
        Source of randomness.
    """
    ranking = np.argsort(-affinities, kind="stable")
    best = max(0, min(size, len(ranking)) - int((generator.random(size) < epsilon).sum()))
    left = generator.permutation(ranking[best:])
    return np.concatenate([ranking[:best], left])[:size]


@dataclass(frozen=True)
class FedFomoState(LibraryState):
    """The clients' last models, and how much each gained by the others.

    Attributes
    ----------
    affinities : ndarray
        Sums of weights, shape (N, N): receiver, giver.
    """

    affinities: NDArray[np.float64]


class FedFomo(LibraryStrategy):
    """FedFomo's server: learns which models to send to whom."""

    paper = "Zhang et al. 2021 (FedFomo)"
    dp_sgd = True
    exchanged = "parameters and weights of others"
    color_family = "hypcluster"
    settings_type = FedFomoSettings
    averages_parameters = False
    settings: FedFomoSettings
    needs_validation_data = True
    state: FedFomoState

    def begin(self, initial: Arrays) -> FedFomoState:
        """Start with no affinities."""
        none = np.zeros((self.plan.num_clients, self.plan.num_clients))
        return FedFomoState(dict(initial), library={}, affinities=none)

    def grown(self) -> FedFomoState:
        """Add clients without affinities."""
        more = padded(self.state.affinities, self.plan.num_clients, axes=2)
        return replace(self.state, affinities=more)

    def others_for(self, server_round: int, partition_id: int) -> list[int]:
        """Return the clients whose models a client receives, a function of seed and round."""
        others = [n for n in self.state.library if n != partition_id]
        settings, seed = self.settings, self.plan.seed
        epsilon = max(0.0, settings.exploration - settings.exploration_decay * (server_round - 1))
        generator = random_generator(seed, "models-of-others", server_round, partition_id)
        row = self.state.affinities[partition_id, others]
        return [others[i] for i in chosen_models(row, settings.models_sent, epsilon, generator)]

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the initial model once, and models of others as ``<position>/<kind>``."""
        library = self.state.library
        others = [library[n] for n in self.others_for(server_round, partition_id)]
        own = {} if partition_id in library else self.state.model
        return {**own, **named_arrays(dict(enumerate(others)))}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, Due]:
        """Require the model and the weights of the models that were sent."""
        return {**model_due(self.state.model), WEIGHTS_OF_OTHERS: Due((self.settings.models_sent,))}

    def check_reply(self, reply: Reply) -> None:
        """Refuse weights that are negative or sum to more than 1."""
        weights = reply.arrays[WEIGHTS_OF_OTHERS]
        if weights.min() < 0 or weights.sum() > 1 + 1e-3:
            raise InvalidReplyError(f"{WEIGHTS_OF_OTHERS} are negative or sum to more than 1")

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FedFomoState:
        """Accumulate the weights, and store the models."""
        library = self.library_with(self.models_in(replies))
        return replace(self.accumulated(server_round, replies), library=library)

    def new_client_payload(self, step: int, partition_id: int) -> Arrays:
        """Send the initial model in the first round only: models of new clients are not stored."""
        payload = self.train_payload(step, partition_id)
        return (
            payload
            if step == 1
            else {k: v for k, v in payload.items() if k not in self.state.model}
        )

    def welcome(self, step: int, replies: dict[int, Reply]) -> FedFomoState:
        """Accumulate the weights of each new client, which determine what it receives next."""
        return self.accumulated(step, replies)

    def accumulated(self, server_round: int, replies: dict[int, Reply]) -> FedFomoState:
        """Return the state with the weights of some replies added to the affinities."""
        affinities = self.state.affinities.copy()
        for n, reply in replies.items():
            others = self.others_for(server_round, n)
            affinities[n, others] += reply.arrays[WEIGHTS_OF_OTHERS][: len(others)]
        return replace(self.state, affinities=affinities)

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return the sums of weights as ``affinities``, (N, N)."""
        return {"affinities": self.state.affinities}
