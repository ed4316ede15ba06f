r"""KT-pFL: clients learn from a mixture of each other's soft predictions.

J. Zhang, S. Guo, X. Ma, H. Wang, W. Xu, F. Wu, *Parameterized Knowledge Transfer for
Personalized Federated Learning*, NeurIPS 2021, arXiv:2111.02862.

The server holds the knowledge coefficient matrix c (N, N), row = receiver, column = giver.
Client n learns from the teacher ``Σ_m c[n, m] S_m``, where S_m (P, K) are client m's soft
predictions on public samples. Models stay with the clients, so they may differ.

Differences from the paper
--------------------------
- Rows of c are projected onto the probability simplex after each step. The paper is silent;
  without it a teacher stops being a distribution.
- One exchange a round, and accuracy measured after local training, as in the authors'
  released implementation: the teacher of round t is distilled at the start of round t + 1.
- Public samples are drawn anew each round as a function of seed and round.
- With partial participation a teacher is mixed from the repliers alone, with the client's
  row renormalized over them; coefficients of absent clients do not move.
- The last teachers of a run would arrive after its last evaluation and are not sent.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import Payload, Reply, RunObserver, RunPlan, Settings
from strategies.privacy import project_onto_simplex
from strategies.soft_predictions import (
    SoftPredictionSettings,
    SoftPredictionStrategy,
    normalized_rows,
    weighted_mean,
)

SMALLEST_PROBABILITY = 1e-12
"""Probabilities are raised to this before their logarithm is taken."""


class KTpFLSettings(SoftPredictionSettings):
    """Settings of KT-pFL and its variants; the defaults are those of the paper's B.2.

    Attributes
    ----------
    temperature : float
        T of the soft predictions.
    knowledge_weight : float
        lambda of Eq. 4, the weight of the knowledge term in the step on c.
    rho : float
        Pull of c towards 1/N, Eq. 4.
    coefficient_learning_rate : float
        eta_3, step size on c, Eq. 7.
    distillation_epochs : int
        R, epochs over the public samples towards the teacher.
    distillation_learning_rate : float
        eta_2, Eq. 6.
    public_batch_size : int
        Batch size on public samples.
    t_squared : bool
        Whether the distillation loss is multiplied by T² (the paper has no such factor).
    top_k : int
        Givers of each client in `TopKpFL`.
    """

    table = "kt-pfl"
    temperature: float = Field(default=10.0, gt=0)
    knowledge_weight: float = Field(default=1.0, ge=0)
    rho: float = Field(default=0.6, ge=0)
    coefficient_learning_rate: float = Field(default=0.01, ge=0)
    distillation_epochs: int = Field(default=1, ge=0)
    distillation_learning_rate: float = Field(default=0.01, gt=0)
    public_batch_size: int = Field(default=256, ge=1)
    t_squared: bool = False
    top_k: int = Field(default=5, ge=1)


def knowledge_loss(
    coefficients: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
) -> float:
    """Return the knowledge term of Eq. 4, ``Σ_n D_n/D Σ_x KL(Σ_m c[n,m] S_m(x) || S_n(x))``.

    Parameters
    ----------
    coefficients : ndarray
        Shape (N, N).
    predictions : ndarray
        Shape (N, P, K).
    shares : ndarray
        Shape (N,), D_n/D.
    """
    teachers = weighted_mean(coefficients, predictions)
    log_ratio = _log(teachers) - _log(predictions)
    return float(shares @ (teachers * log_ratio).sum(axis=(1, 2)))


def knowledge_gradient(
    coefficients: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
) -> NDArray[Any]:
    """Return the gradient of `knowledge_loss` in c, as two matrix products.

    With ``t_n = Σ_m c[n,m] S_m`` the entry (n, m) is
    ``D_n/D Σ_x Σ_k S_m(x,k) (log t_n(x,k) - log S_n(x,k) + 1)``. Cost O(N² P K).

    Parameters
    ----------
    coefficients : ndarray
        Shape (N, N), rows on the simplex.
    predictions : ndarray
        Shape (N, P, K).
    shares : ndarray
        Shape (N,), D_n/D.

    Returns
    -------
    ndarray
        Shape (N, N).
    """
    flat = predictions.reshape(len(predictions), -1)
    log_ratio = _log(coefficients.astype(flat.dtype) @ flat) - _log(flat)
    return shares[:, None] * ((log_ratio + 1) @ flat.T)


def _log(probabilities: NDArray[Any]) -> NDArray[Any]:
    return np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))


def cosine_similarities(predictions: NDArray[Any]) -> NDArray[Any]:
    """Return the cosine between every two clients' flattened soft predictions.

    Parameters
    ----------
    predictions : ndarray
        Shape (N, P, K).

    Returns
    -------
    ndarray
        Shape (N, N), symmetric, entries in [0, 1].
    """
    flat = predictions.reshape(len(predictions), -1).astype(np.float64)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    return flat @ flat.T


def top_k_weights(similarities: NDArray[Any], k: int) -> NDArray[Any]:
    """Give equal weights to each client's k most similar others.

    Parameters
    ----------
    similarities : ndarray
        Shape (N, N).
    k : int
        Givers of each client; all others where there are fewer.

    Returns
    -------
    ndarray
        Shape (N, N), rows on the simplex, the diagonal zero (one client alone learns
        from itself).
    """
    num_clients = len(similarities)
    if num_clients == 1:
        return np.ones((1, 1))
    k = min(k, num_clients - 1)
    others = similarities.copy()
    np.fill_diagonal(others, -np.inf)
    # A stable sort leaves ties with the lower partition-id, on every machine.
    chosen = np.argsort(-others, axis=1, kind="stable")[:, :k]
    weights = np.zeros((num_clients, num_clients))
    np.put_along_axis(weights, chosen, 1 / k, axis=1)
    return weights


class KTpFL(SoftPredictionStrategy):
    """KT-pFL on soft predictions, with a coefficient matrix that learns (Algorithm 1).

    Parameters
    ----------
    plan : RunPlan
        Clients, rounds, sampling and seed; P is its `public_size`.
    settings : KTpFLSettings
        The paper's hyperparameters.
    observer : RunObserver, optional
        Is told of every finished round.

    Attributes
    ----------
    coefficients : ndarray
        c, shape (N, N) float64, rows on the simplex; starts at 1/N.
    """

    settings_type = KTpFLSettings
    settings: KTpFLSettings

    def __init__(
        self, plan: RunPlan, settings: Settings, observer: RunObserver | None = None
    ) -> None:
        super().__init__(plan, settings, observer)
        self.coefficients = np.full((plan.num_clients, plan.num_clients), 1 / plan.num_clients)
        # (N, P, K), or of no client before the first round.
        self._teachers: NDArray[Any] = np.empty((0, plan.public_size, plan.num_classes))

    def train_payload(self, server_round: int, partition_id: int) -> Payload:
        """Send the client its teacher, from the second round on."""
        if not len(self._teachers):
            return {}
        return self.payload("teacher", self._teachers[partition_id])

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ArrayRecord | None:
        """Move the coefficients of the repliers, then mix everybody's teacher from them."""
        repliers = np.array(list(replies))
        predictions = self.stack_predictions(replies)
        block = np.ix_(repliers, repliers)
        self.coefficients[block] = self.updated_block(
            self.coefficients[block], predictions, self._shares(repliers)
        )
        rows = normalized_rows(self.coefficients[:, repliers])
        self._teachers = self.mix(rows, predictions)
        return None

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Take one projected gradient step on the repliers' coefficients (Eq. 7).

        Parameters
        ----------
        block : ndarray
            Shape (R, R), the repliers' rows and columns of c.
        predictions : ndarray
            Shape (R, P, K).
        shares : ndarray
            Shape (R,), D_n/D.

        Returns
        -------
        ndarray
            Shape (R, R), non-negative, every row with the sum it had before.
        """
        mass = block.sum(axis=1)
        weights = shares / np.where(mass > 0, mass, 1)
        knowledge = knowledge_gradient(normalized_rows(block), predictions, weights)
        regularization = 2 * self.settings.rho * (block - 1 / self.plan.num_clients)
        gradient = self.settings.knowledge_weight * knowledge + regularization
        step = block - self.settings.coefficient_learning_rate * gradient
        return project_onto_simplex(step, mass)

    def matrices(self) -> dict[str, NDArray[Any]]:
        """Return c as ``coefficients``, (N, N)."""
        return {"coefficients": self.coefficients.copy()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return c and the teachers that are due next round."""
        return {
            **super().state(),
            "coefficients": self.coefficients,
            "teachers": self._teachers,
        }

    def restore(self, completed_rounds: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the coefficients and teachers of a stopped run."""
        super().restore(completed_rounds, state)
        self.coefficients = np.array(state["coefficients"])
        self._teachers = np.array(state["teachers"])

    def _shares(self, repliers: NDArray[np.int_]) -> NDArray[np.float64]:
        total = sum(client.num_examples for client in self.clients.values())
        return np.array([self.clients[n].num_examples / total for n in repliers])


class SimPFL(KTpFL):
    """Sim-pFL: coefficients proportional to the cosine similarity of soft predictions (§5.1)."""

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Spread each row's mass in proportion to the similarities."""
        return block.sum(axis=1)[:, None] * normalized_rows(cosine_similarities(predictions))


class TopKPFL(KTpFL):
    """TopK-pFL: equal coefficients for the K most similar other clients (§5.1, K = 5)."""

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Spread each row's mass evenly over its K most similar others."""
        weights = top_k_weights(cosine_similarities(predictions), self.settings.top_k)
        return block.sum(axis=1)[:, None] * weights


class FedMD(KTpFL):
    """FedMD's consensus: every client learns from the plain mean, c = 1/N.

    D. Li, J. Wang, *FedMD: Heterogenous Federated Learning via Model Distillation*, NeurIPS
    2019 workshop, arXiv:1910.03581. Differences: soft predictions and unlabeled public
    samples as in KT-pFL, no training on a labeled public set.
    """

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Leave the coefficients at 1/N."""
        return block
