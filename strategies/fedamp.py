"""FedAMP: clients train towards a mixture of the models most similar to their own.

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

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, SearchRange
from strategies.parameters import MixtureStrategy, Model, gram_matrix, squared_distances


class FedAMPSettings(Settings):
    """Settings of FedAMP."""

    table = "fedamp"
    attention_step: Annotated[float, SearchRange(0.01, 10.0, log=True), DEFAULT_ON_NODES] = Field(
        default=0.05, gt=0
    )
    """a, the server's step size; ``a / sigma`` is the weight of another client with an identical
    model."""
    sigma: Annotated[float, SearchRange(0.3, 300.0, log=True), ANY_ON_NODES] = Field(
        default=1.0, gt=0
    )
    """Squared distance between models at which that weight has fallen to 1/e."""
    regularization_weight: Annotated[float, SearchRange(0.001, 3.0, log=True), DEFAULT_ON_NODES] = (
        Field(default=0.01, ge=0)
    )
    """lambda of the proximal term ``lambda / (2 a) ||w_i - u_i||²`` on the clients."""


def attention_weights(
    distances: NDArray[np.float64], step: float, sigma: float
) -> NDArray[np.float64]:
    """Return the weights of u: ``a A'(d_ij)`` off the diagonal, and the rest of 1 on it.

    Squared L2 distances d (R, R), step a, and ``A'(x) = exp(-x / sigma) / sigma``. The result (R,
    R) is by receiver, giver, with rows on the simplex.
    """
    others = step * np.exp(-distances / sigma) / sigma
    np.fill_diagonal(others, 0.0)
    others /= np.maximum(others.sum(axis=1, keepdims=True), 1.0)
    return others + np.diag(1.0 - others.sum(axis=1))


class FedAMP(MixtureStrategy):
    """FedAMP's server (Algorithm 1)."""

    record = MixtureStrategy.record.derived(
        paper=Paper(
            authors="Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang",
            title="Personalized Cross-Silo Federated Learning on Non-IID Data",
            venue="AAAI",
            year=2021,
            arxiv="2007.03797",
        ),
        settings_type=FedAMPSettings,
        dp_sgd=True,
    )
    matrix_name = "attention"
    settings: FedAMPSettings

    def weights_among(self, models: Mapping[int, Model]) -> NDArray[np.float64]:
        distances = squared_distances(gram_matrix(list(models.values())))
        return attention_weights(distances, self.settings.attention_step, self.settings.sigma)
