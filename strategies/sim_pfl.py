"""Sim-pFL and TopK-pFL: coefficients from the similarity of soft predictions.

Differences from the paper
--------------------------
- Those of `strategies.kt_pfl`, whose protocol and settings are used.
- Sim-pFL scales each row of cosines to [0, 1] before it is normalized, as in the authors'
  released code: at T = 10 plain cosines are all close to 1.
"""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.probabilities import normalized_rows
from strategies.core.settings_groups import ANY_ON_NODES
from strategies.kt_pfl import PAPER, PersonalTeacherStrategy, TeacherSettings


class TopKSettings(TeacherSettings):
    """Settings of TopK-pFL."""

    table = "kt-pfl"
    top_k: Annotated[int, ANY_ON_NODES] = Field(default=5, ge=0)
    """Number of other clients that each client learns from. With 0, a client's teacher is its own
    predictions of the round before: self-distillation, a control."""


def cosine_similarities(predictions: NDArray[Any]) -> NDArray[Any]:
    """Return the cosine similarities (N, N) of flattened soft predictions (N, P, K)."""
    flat = predictions.reshape(len(predictions), -1).astype(np.float64)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    return flat @ flat.T


def min_max_scaled_rows(similarities: NDArray[Any]) -> NDArray[Any]:
    """Scale each row of (N, N) to [0, 1]: least to most similar; equal entries become 1."""
    least = similarities.min(axis=1, keepdims=True)
    spread = similarities.max(axis=1, keepdims=True) - least
    return np.where(spread > 0, (similarities - least) / np.where(spread > 0, spread, 1), 1.0)


def top_k_weights(similarities: NDArray[Any], k: int) -> NDArray[Any]:
    """Give equal weights to each client's k most similar others, (N, N); to itself for k = 0."""
    num_clients = len(similarities)
    k = min(k, num_clients - 1)
    if k == 0:
        return np.eye(num_clients)
    others = similarities.copy()
    np.fill_diagonal(others, -np.inf)
    # A stable sort breaks ties by the lower partition-id on every machine.
    chosen = np.argsort(-others, axis=1, kind="stable")[:, :k]
    weights = np.zeros((num_clients, num_clients))
    np.put_along_axis(weights, chosen, 1 / k, axis=1)
    return weights


class SimPFL(PersonalTeacherStrategy):
    """Sim-pFL: coefficients from the cosine similarities of soft predictions (§5.1)."""

    record = PersonalTeacherStrategy.record.derived(
        paper=replace(PAPER, part="§5.1"), dp_sgd=True, takes_estimators=True
    )

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Distribute the sum of each row in proportion to the scaled similarities."""
        similarities = min_max_scaled_rows(cosine_similarities(predictions))
        return block.sum(axis=1)[:, None] * normalized_rows(similarities)


class TopKPFL(PersonalTeacherStrategy):
    """TopK-pFL: equal coefficients for the K most similar other clients (§5.1, K = 5)."""

    record = PersonalTeacherStrategy.record.derived(
        paper=replace(PAPER, part="§5.1"),
        settings_type=TopKSettings,
        dp_sgd=True,
        takes_estimators=True,
    )
    settings: TopKSettings

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Distribute the sum of each row evenly over the K most similar other clients."""
        weights = top_k_weights(cosine_similarities(predictions), self.settings.top_k)
        return block.sum(axis=1)[:, None] * weights
