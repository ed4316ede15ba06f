"""Base of methods whose clients search architectures and continue with mixtures of supernets.

Clients train one DARTS supernet: network weights omega and architecture weights alpha. The server
mixes the supernets of a round by a row-stochastic matrix. On its own the base mixes them evenly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import ALPHAS
from strategies.core.mixing import MIXINGS
from strategies.core.plan import Settings
from strategies.core.probabilities import equal_weights
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, OnNodes
from strategies.core.state import unsaved, with_equal_weights, with_means
from strategies.method import Results
from strategies.parameters import Model, ParameterState, ParameterStrategy, mix_models, mixed_model


class SearchSettings(Settings):
    """Settings of the architecture search on the clients."""

    table = "fedkma"
    alpha_optimizer: Annotated[Literal["sgd", "adam"], ANY_ON_NODES] = "sgd"
    """Optimizer of the architecture weights: ``sgd`` with the run's momentum (§V-A), or ``adam`` as
    in DARTS."""
    alpha_learning_rate: Annotated[float, OnNodes(0, 1)] = Field(default=0.01, gt=0)
    """Step size on the architecture weights."""
    alpha_weight_decay: Annotated[float, OnNodes(0, 0.1)] = Field(default=3e-4, ge=0)
    """Weight decay of the architecture weights."""
    alpha_share: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.0, ge=0, lt=1)
    """Share of the training samples that is reserved for the architecture weights, 0.5 in DARTS.
    With 0 both kinds of weights train on all samples (Eq. 7, Algorithm 1 line 20)."""


@dataclass(frozen=True)
class SupernetState(ParameterState):
    """The initial model, the weights of the mixtures, and the mixtures."""

    sharing: NDArray[np.float64]
    """M, shape (N, N), rows on the simplex; starts uniform. A client that fails in training keeps
    its row, and its column is zero in the others' rows."""
    mixed: Model
    """The clients' mixed models by kind, shape (N, length); empty before the first round."""
    last_replies: Sequence[Reply] = unsaved()
    """Replies of the last round of training if there are new clients. They are not saved."""


class SupernetStrategy(ParameterStrategy):
    """Every client continues with a mixture of the supernets of the round.

    A method overrides `sharing_rows` and `new_sharing_rows`, the weights of the mixtures.
    """

    record = ParameterStrategy.record.derived(settings_type=SearchSettings)
    state: SupernetState

    def begin(self, initial: Arrays) -> SupernetState:
        equal = equal_weights(self.plan.num_clients, self.plan.new_client_ids)
        return SupernetState(dict(initial), sharing=equal, mixed={})

    # ---- Hooks of methods ------------------------------------------------------------

    def sharing_rows(self, server_round: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Return the rows of M of the repliers over the repliers, shape (R, R)."""
        return np.full((len(replies), len(replies)), 1 / len(replies))

    def new_sharing_rows(self, step: int, replies: dict[int, Reply]) -> NDArray[np.float64]:
        """Return a row per new client over `last_replies` and itself, shape (R, L + 1)."""
        givers = len(self.state.last_replies) + 1
        return np.full((len(replies), givers), 1 / givers)

    # ---- Hooks of every parameter method ---------------------------------------------

    def with_more_clients(self) -> SupernetState:
        """Give clients that join 1/N in M, and the mean of the mixed models."""
        size = self.plan.num_clients
        return replace(
            self.state,
            sharing=with_equal_weights(self.state.sharing, size),
            mixed={kind: with_means(rows, size) for kind, rows in self.state.mixed.items()},
        )

    def model_for(self, partition_id: int) -> Model:
        """Return the client's mixed model, or the initial model before the first round."""
        mixed = {kind: rows[partition_id] for kind, rows in self.state.mixed.items()}
        return mixed or self.state.model

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> SupernetState:
        """Collect the rows of M, then mix every replier's model by its row."""
        repliers, models = list(replies), list(self.models_in(replies).values())
        block = self.sharing_rows(server_round, replies)
        sharing = self.state.sharing.copy()
        sharing[repliers] = 0
        sharing[np.ix_(repliers, repliers)] = block
        size, model = len(sharing), self.state.model
        mixed = self.state.mixed or {kind: np.tile(v, (size, 1)) for kind, v in model.items()}
        for kind, rows in mix_models(block, models, MIXINGS[self.plan.mixing]).items():
            # In place, since these are N models.
            mixed[kind][repliers] = rows
        is_needed = self.plan.num_new and server_round == self.plan.num_server_rounds
        last_replies = list(replies.values()) if is_needed else ()
        return replace(self.state, sharing=sharing, mixed=mixed, last_replies=last_replies)

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> SupernetState:
        """Mix each new client's model with those of the last round's repliers by its row of M."""
        givers = dict(enumerate(self.state.last_replies))
        models = list(self.models_in(givers).values())
        rows = self.new_sharing_rows(step, replies)
        for (n, own), row in zip(self.models_in(replies).items(), rows, strict=True):
            mixture = mixed_model([*models, own], row, MIXINGS[self.plan.mixing])
            for kind, vector in mixture.items():
                self.state.mixed[kind][n] = vector
        return self.state

    def results(self) -> Results:
        """Return M as ``sharing``, (N, N), and the mixed ``alphas``, (N, a)."""
        alphas = {kind: rows.copy() for kind, rows in self.state.mixed.items() if kind == ALPHAS}
        return Results(matrices={"sharing": self.state.sharing, **alphas})
