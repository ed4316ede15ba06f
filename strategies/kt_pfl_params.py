"""KT-pFL on parameters: personalized models mixed by learned coefficients.

All clients have one architecture and send their parameters w_n. The server updates the
coefficients c (N, N), row = receiver, column = giver, by Eq. 11 with the squared distance,
``c <- c - eta_3 (lambda Σ_n D_n/D ∇_c ||Σ_m c[n, m] w_m - w_n||² + 2 rho (c - 1/N))``, and client n
starts its next round from ``w_n + tau (Σ_m c[n, m] w_m - w_n)``.

Differences from the paper
--------------------------
- Rows of c are projected onto the probability simplex, as in `strategies.kt_pfl`.
- Eq. 10 moves w_n towards the mixed model by a gradient step of eta_2 = 0.01, which has almost no
  effect. Here tau is ``transfer-step``; the default of 1 replaces w_n by the mixed model.
- The gradient is computed from the models' inner products, (N, N), after subtracting the mean
  model. This shifts each row of the gradient by a constant, which the projection removes.
- Clients may be sampled. Then only the repliers' rows and columns of c change. A client receives
  the mixture of the last round's repliers, with its row renormalized over them. The server stores
  as many models as were sampled, not N.
- A client that participates for the first time starts from the received model, whatever tau is.
- Batch normalization's running statistics are mixed like parameters. Updates longer than
  ``update-cap`` times the median are clipped, 10 times by default.
- Accuracy is that of the model after local training, as in `strategies.kt_pfl`.
- A new client updates its own row over the models of the last round and its own model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.mixing import MIXINGS
from strategies.core.plan import Settings
from strategies.core.probabilities import normalized_rows
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.core.state import PairMatrix
from strategies.kt_pfl import PAPER, projected_step
from strategies.method import Results
from strategies.parameters import Model, ParameterState, ParameterStrategy, gram_matrix, stacked


class KTpFLParamsSettings(Settings):
    """Settings of KT-pFL on parameters, with the defaults of the paper's B.2."""

    table = "kt-pfl-params"
    knowledge_weight: Annotated[float, ANY_ON_NODES] = Field(default=1.0, ge=0)
    """lambda of Eq. 11, the weight of the knowledge term in the update of c."""
    rho: Annotated[float, ANY_ON_NODES] = Field(default=0.6, ge=0)
    """rho, the weight of the penalty that pulls c towards 1/N."""
    coefficient_learning_rate: Annotated[
        float, SearchRange(0.0005, 0.05, log=True), ANY_ON_NODES
    ] = Field(default=0.005, ge=0)
    """eta_3, the step size on c; 0 keeps c at 1/N."""
    transfer_step: Annotated[float, ANY_ON_NODES] = Field(default=1.0, ge=0, le=1)
    """tau, how far a client's model moves towards the mixed model; 1 replaces it."""


def distance_gradient(
    coefficients: NDArray[Any], products: NDArray[Any], shares: NDArray[Any]
) -> NDArray[Any]:
    """Return the gradient in c of ``Σ_n p_n ||Σ_m c[n, m] w_m - w_n||²``, ``2 p (c - I) W Wᵀ``."""
    return 2 * shares[:, None] * ((coefficients - np.eye(len(coefficients))) @ products)


@dataclass(frozen=True)
class KTpFLParamsState(ParameterState):
    """The initial model, the coefficients, and the models that they mix."""

    coefficients: PairMatrix
    """c, (N, N), rows on the simplex; starts at 1/N."""
    repliers: NDArray[np.int64]
    """Shape (R,), repliers of the last round; empty before the first."""
    models: Model
    """Models of these clients by kind, each (R, length)."""


class KTpFLParams(ParameterStrategy):
    """KT-pFL's server for parameters (Algorithm 2)."""

    record = ParameterStrategy.record.derived(
        paper=replace(PAPER, part="appendix C"),
        settings_type=KTpFLParamsSettings,
        dp_sgd=True,
        evaluates_trained_model=True,
        evaluates=("received",),
    )
    settings: KTpFLParamsSettings
    state: KTpFLParamsState

    def begin(self, initial: Arrays) -> KTpFLParamsState:
        equal = PairMatrix.equal(self.plan.num_clients, self.plan.new_client_ids)
        return KTpFLParamsState(dict(initial), equal, np.empty(0, dtype=np.int64), models={})

    def with_more_clients(self) -> KTpFLParamsState:
        grown = self.state.coefficients.with_equal_clients(self.plan.num_clients)
        return replace(self.state, coefficients=grown)

    def model_for(self, partition_id: int) -> Model:
        """Mix the last round's models by the client's row of c."""
        state = self.state
        if not len(state.repliers):
            return state.model
        row = normalized_rows(state.coefficients.at([partition_id], state.repliers))
        mix = MIXINGS[self.plan.mixing]
        return {kind: mix(row, rows)[0] for kind, rows in state.models.items()}

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> KTpFLParamsState:
        """Update the repliers' coefficients, and store their models for the next round."""
        repliers, own = list(models), list(models.values())
        coefficients = self.state.coefficients.with_members(repliers)
        shares = self.round.sizes(repliers) / self.round.sizes(self.round.trained).sum()
        block = self.updated_block(coefficients.at(repliers, repliers), own, shares)
        return replace(
            self.state,
            coefficients=coefficients.changed(repliers, repliers, block),
            repliers=np.array(repliers),
            models=stacked(own),
        )

    def updated_block(
        self, block: NDArray[Any], models: Sequence[Model], shares: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Take one projected gradient step on some clients' coefficients, (R, R) (Eq. 11)."""
        products, settings = gram_matrix(models), self.settings
        return projected_step(
            block,
            shares,
            lambda rows, weights: distance_gradient(rows, products, weights),
            settings.knowledge_weight,
            settings.rho,
            settings.coefficient_learning_rate,
            self.plan.num_clients,
        )

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> KTpFLParamsState:
        """Update each new client's row over the last round's models and its own model."""
        state, trained = self.state, self.round.trained
        of_trained = [m for m, n in enumerate(state.repliers) if n in trained]
        givers = state.repliers[of_trained].tolist()
        models = [{kind: rows[m] for kind, rows in state.models.items()} for m in of_trained]
        own, coefficients = self.models_in(replies), state.coefficients.with_members(replies)
        for n, model in own.items():
            members = [*givers, n]
            block = coefficients.at(members, members)
            shares = self.round.sizes(members) / self.round.sizes([*trained, n]).sum()
            row = self.updated_block(block, [*models, model], shares)[-1:]
            coefficients = coefficients.changed([n], members, row)
        # No row gives weight to another new client.
        return replace(
            state,
            coefficients=coefficients,
            repliers=np.array([*givers, *own]),
            models=stacked([*models, *own.values()]),
        )

    def results(self) -> Results:
        return Results(matrices=self.state.coefficients.named("coefficients"))
