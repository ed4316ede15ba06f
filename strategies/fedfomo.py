"""FedFomo: clients weight models by the decrease of their validation loss.

Client i receives the models of M other clients. Its own last model is a candidate too. Each
candidate has the gain ``(L_i(w_i) - L_i(w_j)) / ||w_j - w_i||``, with the validation loss L_i and
the model w_i from which the client started its last training. The positive gains, scaled to sum 1,
are the weights of the mean from which it continues (Eqs. 4 and 5). The server accumulates the gains
in a matrix of affinities and sends a client the models with the largest ones; with probability
epsilon it sends a random model instead.

Differences from the paper
--------------------------
- A client mixes before it trains, so it receives models of the previous round. This takes one
  message per direction and round instead of two.
- A client without any positive gain continues from its last model, not from the one before.
- A client's reply changes only its own row of the affinities, and so only what it receives itself.
  Equal affinities are ordered at random.
- epsilon decreases by ``exploration-decay`` per round; the paper gives no rate.
- Batch-normalization statistics are mixed like parameters, but do not count in distances.
- A client whose loss at w_i is not finite continues from the mean of the candidates with a finite
  loss.
- Momentum continues across the mixture, also where the client's own model has no weight in it.
- Accuracy is that of the model after local training.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import BUFFERS, WEIGHTS, Data, Sent, of_model
from strategies.core.method_record import Need, Paper
from strategies.core.plan import Settings
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.core.state import PairMatrix, named_arrays
from strategies.method import Results
from strategies.parameters import LibraryState, LibraryStrategy, expected_model

GAINS_OF_OTHERS = "gains-of-others"
"""Name of the array of gains of the received models, (M,), of any sign, padded with 0."""


class FedFomoSettings(Settings):
    """Settings of FedFomo."""

    table = "fedfomo"
    models_sent: Annotated[int, SearchRange(1, 10), ANY_ON_NODES] = Field(default=5, ge=1)
    """M, the number of models sent to a client; all of them if there are fewer."""
    exploration: Annotated[float, ANY_ON_NODES] = Field(default=0.3, ge=0, le=1)
    """epsilon in the first round: the share of these models that is drawn at random."""
    exploration_decay: Annotated[float, ANY_ON_NODES] = Field(default=0.05, ge=0, le=1)
    """Decrease of epsilon per round, down to 0."""


def gains_of(
    loss: float, losses: NDArray[np.float64], distances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``(L(w_i) - L(w_j)) / ||w_j - w_i||`` of candidates, 0 for those that are not usable.

    Losses L(w_j) and distances have shape (M,); a candidate is usable if both are finite and it
    differs from w_i. Where L(w_i) is not finite, the gains of candidates with a finite loss are 1.
    """
    if not np.isfinite(loss):
        return np.isfinite(losses).astype(np.float64)
    is_usable = np.isfinite(losses) & np.isfinite(distances) & (distances > 0)
    gains: NDArray[np.float64] = np.zeros(len(losses))
    gains[is_usable] = (loss - losses[is_usable]) / distances[is_usable]
    return gains


def weights_of(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the positive gains, (M,), scaled to sum 1; all 0 if there are none."""
    weights = np.maximum(gains, 0.0)
    return weights / weights.sum() if weights.any() else weights


def chosen_models(
    affinities: NDArray[np.float64], size: int, epsilon: float, generator: np.random.Generator
) -> NDArray[np.intp]:
    """Return the positions of the models to send: the best, and with `epsilon` random ones.

    By affinities (R,) of the receiving client to the candidates.
    """
    ranking = np.lexsort((generator.random(len(affinities)), -affinities))
    best = max(0, min(size, len(ranking)) - int((generator.random(size) < epsilon).sum()))
    left = generator.permutation(ranking[best:])
    return np.concatenate([ranking[:best], left])[:size]


@dataclass(frozen=True)
class FedFomoState(LibraryState):
    """The clients' last models, and how much each gained by the others."""

    affinities: PairMatrix
    """Sums of gains, (N, N): receiver, giver."""


class FedFomo(LibraryStrategy):
    """FedFomo's server: learns which models to send to whom."""

    record = LibraryStrategy.record.derived(
        paper=Paper(
            authors="M. Zhang, K. Sapra, S. Fidler, S. Yeung, J. M. Alvarez",
            title="Personalized Federated Learning with First Order Model Optimization",
            venue="ICLR",
            year=2021,
            arxiv="2012.08565",
        ),
        exchanged="parameters and gains of others",
        needs=(Need.ONE_ARCHITECTURE, Need.VALIDATION_DATA, Need.COUNTS),
        settings_type=FedFomoSettings,
        averages_parameters=False,
        # Validation samples weigh the models from which a training starts.
        sends=(
            of_model(WEIGHTS, Data.VALIDATION),
            Sent(BUFFERS, inputs=(Data.TRAINING, Data.VALIDATION)),
            of_model(GAINS_OF_OTHERS, Data.VALIDATION),
        ),
    )
    settings: FedFomoSettings
    state: FedFomoState

    def begin(self, initial: Arrays) -> FedFomoState:
        none = PairMatrix.zeros(self.plan.num_clients)
        return FedFomoState(dict(initial), library={}, affinities=none)

    def with_more_clients(self) -> FedFomoState:
        return replace(
            self.state, affinities=self.state.affinities.with_more_clients(self.plan.num_clients)
        )

    def others_for(self, server_round: int, partition_id: int) -> list[int]:
        """Return the clients whose models a client receives, a function of seed and round."""
        others = [n for n in self.state.library if n != partition_id]
        settings, seed = self.settings, self.plan.seed
        epsilon = max(0.0, settings.exploration - settings.exploration_decay * (server_round - 1))
        generator = random_generator(seed, "models-of-others", server_round, partition_id)
        (row,) = self.state.affinities.at([partition_id], others)
        return [others[i] for i in chosen_models(row, settings.models_sent, epsilon, generator)]

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the initial model once, and models of others, each vector by position and kind."""
        library = self.state.library
        others = [library[n] for n in self.others_for(server_round, partition_id)]
        # The models of new clients are not stored, so their rounds tell whether they have it.
        is_new, later = partition_id in self.round.new, server_round > 1
        has_begun = later if is_new else partition_id in library
        return {**({} if has_begun else self.state.model), **named_arrays(dict(enumerate(others)))}

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        return {
            **expected_model(self.state.model),
            GAINS_OF_OTHERS: ExpectedArray((self.settings.models_sent,)),
        }

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FedFomoState:
        """Accumulate the gains, and store the models."""
        library = self.library_with(self.models_in(replies))
        return replace(self.accumulated(server_round, replies), library=library)

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> FedFomoState:
        """Accumulate the gains of each new client, which determine what it receives next."""
        return self.accumulated(step, replies)

    def accumulated(self, server_round: int, replies: dict[int, Reply]) -> FedFomoState:
        """Return the state with the gains of some replies added to the affinities."""
        repliers, library = list(replies), self.state.library
        affinities = self.state.affinities.with_members([*library, *repliers])
        rows = affinities.at(repliers, affinities.members)
        for row, (n, reply) in zip(rows, replies.items(), strict=True):
            others = self.others_for(server_round, n)
            row[affinities.places[others]] += reply.arrays[GAINS_OF_OTHERS][: len(others)]
        changed = affinities.changed(repliers, affinities.members, rows)
        return replace(self.state, affinities=changed)

    def results(self) -> Results:
        return Results(matrices=self.state.affinities.named("affinities"))
