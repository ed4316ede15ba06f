"""FeSEM: several global models, each the mean of the clients nearest to it in parameters.

Each round is one step of expectation maximization on the clients' models ``W_i`` (Algorithm 1):

- E-step: ``r_i = argmin_k ||W_i - C_k||²`` with the centers ``C_k`` of the previous round;
- M-step: ``C_k`` becomes the mean of the models with ``r_i = k``.

Client i continues from its center. With one center this is FedAvg.

Differences from the paper
--------------------------
- The paper draws centers at random. Independent initial networks are so far apart that no client
  would ever change its center. So all clients start with the initial global model, and after the
  first round k-means++ chooses the centers among their models.
- The mean is weighted by training samples as in FedAvg, over the round's repliers only. The server
  stores no model of a client.
- A client that has not replied yet receives the mean of all models of the last round.
- The distance includes only weights, not the statistics of batch normalization.
- Centers are chosen once. If the first round has fewer repliers than centers, the remaining centers
  are infinitely far from all models, and so stay unused. Fewer sampled clients per round than
  centers are refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from logging import WARNING

import numpy as np
from numpy.typing import NDArray

from strategies.clusters import ClusteredStrategy, ClusterSettings, ClusterState
from strategies.core.declarations import WEIGHTS
from strategies.core.flower import log
from strategies.core.method_record import Paper
from strategies.core.plan import RunPlan, Settings, refuse_above
from strategies.core.randomness import random_generator
from strategies.core.replies import Reply
from strategies.parameters import Model, stacked


class FeSEMSettings(ClusterSettings):
    """Settings of FeSEM."""

    table = "fesem"


def nearest_centers(
    models: Sequence[NDArray[np.float32]], centers: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return the center (c, d) nearest to each of R models (d,) in L2 distance (the E-step)."""
    # One pair at a time: all differences together would need the memory of R times c models.
    distances = [[np.square(model - center).sum() for center in centers] for model in models]
    return np.argmin(distances, axis=1)


def first_centers(
    models: Sequence[NDArray[np.float32]], clusters: int, seed: int
) -> NDArray[np.int64]:
    """Choose min(c, R) distant models of R by k-means++, and return their positions."""
    from sklearn.cluster import kmeans_plusplus  # deferred: clients import this module

    _, chosen = kmeans_plusplus(np.stack(models), min(clusters, len(models)), random_state=seed)
    positions: NDArray[np.int64] = chosen
    return positions


class FeSEM(ClusteredStrategy):
    """Alternates between assigning clients to centers and moving the centers."""

    record = ClusteredStrategy.record.derived(
        paper=Paper(
            authors="M. Xie, G. Long, T. Shen, T. Zhou, X. Wang, J. Jiang, C. Zhang",
            title="Multi-Center Federated Learning",
            year=2020,
            arxiv="2005.01026",
        ),
        settings_type=FeSEMSettings,
        dp_sgd=True,
    )

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse more clusters than sampled clients, whose models become the first centers."""
        super().check_plan(plan, settings)
        clusters, most = ClusterSettings.model_validate(settings).clusters, plan.sample_size
        limit = f"the {most} clients per round (fraction-train)"
        refuse_above("fesem.clusters", clusters, most, limit)

    def model_for(self, partition_id: int) -> Model:
        """Return the client's center, or the global mean before its first assignment."""
        center = self.state.labels[partition_id]
        return self.state.models[center] if center >= 0 else self.state.model

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> ClusterState:
        """Assign models to centers, move the centers, and average all for unassigned clients."""
        centers = self.state.centers
        if (self.state.labels < 0).all():
            centers = self.scattered_centers(server_round, list(models.values()))
        assigned = nearest_centers([model[WEIGHTS] for model in models.values()], centers[WEIGHTS])
        return replace(self.moved(centers, models, assigned), model=self.average(models))

    def with_new_clients(self, step: int, replies: dict[int, Reply]) -> ClusterState:
        """Assign each new client to its nearest center; the centers do not move."""
        weights = [reply.arrays[WEIGHTS] for reply in replies.values()]
        assigned = nearest_centers(weights, self.state.centers[WEIGHTS])
        return replace(self.state, labels=self.labels_with(replies, assigned))

    def scattered_centers(self, server_round: int, models: Sequence[Model]) -> Model:
        """Return the centers, (c, length) by kind: models of repliers, then infinite ones."""
        generator = random_generator(self.plan.seed, "first-centers", server_round)
        seed = int(generator.integers(2**31))
        weights = [model[WEIGHTS] for model in models]
        positions = first_centers(weights, self.settings.clusters, seed)
        if len(positions) < self.settings.clusters:
            log(WARNING, "Round %d: only %d clusters in use, because of too few replies",
                server_round, len(positions))  # fmt: skip
        chosen = stacked([models[position] for position in positions])
        return {
            kind: np.concatenate([chosen[kind], np.full_like(rows[len(positions) :], np.inf)])
            for kind, rows in self.state.centers.items()
        }
