"""PerFed-CKT: clients learn from the nearest cluster of soft predictions.

The server clusters the soft predictions of last round's clients by k-means and sends all
centroids to this round's clients. Each client learns from the centroid nearest to its own
predictions. Models stay on the clients, so they may differ in architecture.

Differences from the paper
--------------------------
- In the first round there are no centroids yet, and clients train without the second term.
- If there are fewer distinct predictions than clusters, there are as many centroids as distinct
  predictions.
- Clients are sampled with probabilities that follow their numbers of samples, up to ``weight-cap``
  times the median, 5 times by default. The paper has no limit.
- A client that is not sampled keeps its model and is evaluated with it, as in the paper's
  "average test accuracy across the entire clients".
- ``perfed-ckt.weight-by-distance = true`` gives each client its own weight by Theorem 4.2,
  ``lambda_k = sigma² / (v_k² nu)``; the paper's experiments have one for all. The constant
  sigma²/nu is the regularization weight, and v_k² is estimated in each round by the squared
  distance of the client's predictions to its centroid, at least `LEAST_DISTANCE`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import Data
from strategies.core.flower import log
from strategies.core.method_record import Paper
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.mixing import Mix, weighted_mean
from strategies.core.plan import RunPlan, Settings, refuse_above, sample_clients
from strategies.core.probabilities import normalized_rows
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, Metric, Reply
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.core.state import padded
from strategies.method import Results
from strategies.soft_predictions import (
    SoftPredictionSettings,
    SoftPredictionState,
    SoftPredictionStrategy,
)

FIXED_SUBSET = 0  # the round that draws the public samples of all rounds

LEAST_DISTANCE = 0.01
"""Smallest v_k² in a client's weight: with a smaller one, a step could overshoot the centroid."""


class PerFedCKTSettings(SoftPredictionSettings):
    """Settings of PerFed-CKT, with the defaults of the paper's Appendix E."""

    table = "perfed-ckt"
    clusters: Annotated[int, SearchRange(1, 5), ANY_ON_NODES] = Field(default=3, ge=1)
    """c, the number of clusters of clients, each with one centroid of soft predictions."""
    regularization_weight: Annotated[float, SearchRange(0.3, 10.0, log=True), OnNodes(0, 100)] = (
        Field(default=2.0, ge=0)
    )
    """lambda of Eq. 1, the weight of the distance to the assigned centroid."""
    public_batch_size: Annotated[int, ANY_ON_NODES] = Field(default=128, ge=1)
    """b', the number of public samples per iteration."""
    weight_by_distance: Annotated[bool, ANY_ON_NODES] = False
    """Whether a client's weight is lambda over its squared distance to its centroid (Theorem 4.2),
    or lambda for all clients."""

    def factor(self, distance: float) -> float:
        """Return what multiplies lambda at a client.

        The distance is v_k², the squared L2 distance of the client's predictions to its centroid,
        summed over classes, mean over samples.
        """
        return 1 / max(distance, LEAST_DISTANCE) if self.weight_by_distance else 1.0


def k_means(predictions: NDArray[Any], clusters: int, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each of m clients, by k-means on their soft predictions (m, P, K).

    There are at most as many clusters as distinct predictions.
    """
    # Deferred: clients import this module, but only the server clusters.
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    flat = predictions.reshape(len(predictions), -1)
    distinct = len(np.unique(flat, axis=0))
    kmeans = KMeans(min(clusters, distinct), n_init=10, random_state=seed)
    # One thread takes a second or two; several threads competing for cores took half a minute.
    with warnings.catch_warnings(), threadpool_limits(1):
        # k-means warns when nearly equal predictions collapse into one cluster, which is fine here.
        warnings.simplefilter("ignore")
        labels: NDArray[np.int64] = kmeans.fit_predict(flat)
    return labels


def centroids_of(
    predictions: NDArray[Any], clusters: NDArray[np.int64], mix: Mix = weighted_mean
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return centroids, (c, P, K) with rows on the simplex, and the one of each client, (m,).

    `clusters` (m,) numbers those of the predictions (m, P, K); numbers without members have no
    centroid. `mix` computes centroids from (c, m) weights of the members.
    """
    numbers, labels = np.unique(clusters, return_inverse=True)
    members = np.equal.outer(np.arange(len(numbers)), labels).astype(np.float64)
    centroids = mix(normalized_rows(members), predictions)
    return centroids.astype(np.float32), labels.astype(np.int64)


@dataclass(frozen=True)
class CentroidState(SoftPredictionState):
    """The centroids, (c, P, K), and which clients they come from."""

    labels: NDArray[np.int64]
    """Shape (N,), the cluster of each client that replied in the last round, else -1."""


class PerFedCKT(SoftPredictionStrategy):
    """PerFed-CKT (Algorithm 1): cluster last round's predictions, broadcast the centroids."""

    record = SoftPredictionStrategy.record.derived(
        paper=Paper(
            authors="Y. J. Cho, J. Wang, T. Chiruvolu, G. Joshi",
            title="Personalized Federated Learning for Heterogeneous Clients with Clustered "
            "Knowledge Transfer",
            year=2021,
            arxiv="2109.08119",
        ),
        settings_type=PerFedCKTSettings,
        dp_sgd=True,
        takes_estimators=True,
        train_metrics=(
            TRAIN_LOSS,
            Metric("cluster", averaged=False, low=0, inputs=(Data.PUBLIC,), through_model=True),
            Metric("weight", low=0, inputs=(Data.PUBLIC,), through_model=True),
        ),
    )
    settings: PerFedCKTSettings
    teacher_name = "centroids"
    state: CentroidState

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        super().check_plan(plan, settings)
        clusters, most = PerFedCKTSettings.model_validate(settings).clusters, plan.num_training
        refuse_above("perfed-ckt.clusters", clusters, most, f"the {most} clients")

    def begin(self, initial: Arrays) -> CentroidState:
        begun, unassigned = super().begin(initial), np.full(self.plan.num_clients, -1)
        return CentroidState(begun.releases, begun.teachers, unassigned)

    def with_more_clients(self) -> CentroidState:
        grown, size = super().with_more_clients(), self.plan.num_clients
        return replace(
            self.state, releases=grown.releases, labels=padded(self.state.labels, size, -1)
        )

    def sample(self, server_round: int, candidates: Sequence[int]) -> list[int]:
        """Sample without replacement, with probabilities proportional to the capped `sizes`."""
        plan, sizes = self.plan, self.round.sizes(candidates)
        return sample_clients(candidates, plan.sample_size, plan.seed, server_round, sizes)

    def cluster(self, predictions: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """Return the cluster of each client that replied, (m,), of at most k: by default k-means.

        Soft predictions (m, P, K) are by ascending partition-id.
        """
        draws = random_generator(self.plan.seed, "k-means", self.round.number)
        return k_means(predictions, k, int(draws.integers(2**31)))

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> CentroidState:
        """Cluster the predictions of this round; the teachers are the centroids (c, P, K)."""
        predictions = self.stack_predictions(replies)
        clusters = self.cluster(predictions, self.settings.clusters)
        centroids, labels = centroids_of(predictions, clusters, self.mix)
        if len(centroids) < self.settings.clusters:
            log(INFO, "Round %d: %d of %d clusters, from %d replies",
                server_round, len(centroids), self.settings.clusters, len(replies))  # fmt: skip
        of_all = np.full(self.plan.num_clients, -1)
        of_all[list(replies)] = labels
        return replace(self.state, teachers=centroids, labels=of_all)

    def results(self) -> Results:
        """Return the clusters of the round as ``clusters``, (N,), -1 for absent clients."""
        return replace(super().results(), matrices={"clusters": self.state.labels})
