"""Base of methods whose clients search architectures and continue with mixtures of supernets.

Clients train one DARTS supernet: network weights omega and architecture weights alpha. The server
mixes the supernets of a round by a row-stochastic matrix. On its own the base mixes them evenly.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.mixing import MIXINGS
from strategies.core.new_clients import with_equal_weights, with_means
from strategies.core.plan import Settings
from strategies.core.replies import Arrays, Reply
from strategies.core.simplex import equal_weights
from strategies.parameters import Model, ParameterStrategy, mix_models, mixed_model


class SearchSettings(Settings):
    """Settings of the architecture search on the clients.

    Attributes
    ----------
    alpha_optimizer : str
        Optimizer of the architecture weights: ``sgd`` with the run's momentum (§V-A), or ``adam``
        as in DARTS.
    alpha_learning_rate : float
        Step size on the architecture weights.
    alpha_weight_decay : float
        Weight decay of the architecture weights.
    alpha_share : float
        Share of the training samples that is reserved for the architecture weights, 0.5 in DARTS.
        With 0 both kinds of weights train on all samples (Eq. 7, Algorithm 1 line 20).
    """

    table = "fedkma"
    alpha_optimizer: Literal["sgd", "adam"] = "sgd"
    alpha_learning_rate: float = Field(default=0.01, gt=0)
    alpha_weight_decay: float = Field(default=3e-4, ge=0)
    alpha_share: float = Field(default=0.0, ge=0, lt=1)


class SupernetStrategy(ParameterStrategy):
    """Every client continues with a mixture of the supernets of the round.

    A method overrides `sharing_rows` and `new_sharing_rows`, the weights of the mixtures.

    Attributes
    ----------
    sharing : ndarray
        M, shape (N, N), rows on the simplex; starts uniform. A client that fails in training
        keeps its row, and its column is zero in the others' rows.
    mixed : dict of str to ndarray
        The clients' mixed models by kind, shape (N, length); empty before the first round.
    last_replies : sequence of Reply
        Replies of the last round if there are new clients; not part of the state.
    """

    color_family = "fedkma"
    settings_type: ClassVar[type[SearchSettings]] = SearchSettings
    settings: SearchSettings
    kept = (*ParameterStrategy.kept, "sharing", "mixed")
    sharing: NDArray[np.float64]
    mixed: Model
    last_replies: Sequence[Reply]

    def begin(self, initial: Arrays) -> None:
        """Start with one model for all clients and uniform weights."""
        super().begin(initial)
        self.sharing = equal_weights(self.plan.num_clients, self.plan.new_client_ids)
        self.mixed = {}

    # ---- Hooks of methods ------------------------------------------------------------

    def sharing_rows(self, server_round: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Return the rows of M of the repliers over the repliers, shape (R, R)."""
        return np.full((len(replies), len(replies)), 1 / len(replies))

    def new_sharing_rows(self, step: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Return a row per new client over `last_replies` and itself, shape (R, L + 1)."""
        givers = len(self.last_replies) + 1
        return np.full((len(replies), givers), 1 / givers)

    # ---- Hooks of every parameter method ---------------------------------------------

    def grow(self) -> None:
        """Give clients that join 1/N in M, and the mean of the mixed models."""
        size = self.plan.num_clients
        self.sharing = with_equal_weights(self.sharing, size)
        self.mixed = {kind: with_means(rows, size) for kind, rows in self.mixed.items()}

    def model_for(self, partition_id: int) -> Model:
        """Return the client's mixed model, or the initial model before the first round."""
        if not self.mixed:
            return self.model
        return {kind: rows[partition_id] for kind, rows in self.mixed.items()}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Collect the rows of M, then mix every replier's model by its row."""
        repliers = list(replies)
        if self.plan.num_new and server_round == self.plan.num_server_rounds:
            self.last_replies = list(replies.values())
        block = self.sharing_rows(server_round, replies)
        self.sharing[repliers] = 0
        self.sharing[np.ix_(repliers, repliers)] = block
        if not self.mixed:
            self.mixed = {
                kind: np.tile(v, (len(self.sharing), 1)) for kind, v in self.model.items()
            }
        models = self._models(list(replies.values()))
        for kind, mixed in mix_models(block, models, MIXINGS[self.plan.mixing]).items():
            self.mixed[kind][repliers] = mixed

    def welcome(self, step: int, replies: dict[int, Reply]) -> None:
        """Mix each new client's model with those of the last round's repliers by its row of M."""
        rows = self.new_sharing_rows(step, replies)
        for (n, reply), row in zip(replies.items(), rows, strict=True):
            models = self._models([*self.last_replies, reply])
            for kind, mixed in mixed_model(models, row, MIXINGS[self.plan.mixing]).items():
                self.mixed[kind][n] = mixed

    def matrices(self) -> dict[str, NDArray[np.float64]]:
        """Return M as ``sharing``, (N, N), and the mixed ``alphas``, (N, a)."""
        alphas = {kind: rows.copy() for kind, rows in self.mixed.items() if kind == "alphas"}
        return {"sharing": self.sharing.copy(), **alphas}

    def _models(self, replies: Sequence[Reply]) -> list[Model]:
        return [{kind: reply.arrays[kind] for kind in self.model} for reply in replies]
