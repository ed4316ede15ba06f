"""Base of methods with several global models: centers and cluster assignments."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.plan import RunPlan, Settings, refuse_above
from strategies.core.replies import Arrays
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.core.state import padded
from strategies.method import Results
from strategies.parameters import (
    AVERAGES,
    Model,
    ParameterState,
    ParameterStrategy,
    mean_model,
    stacked,
)


class ClusterSettings(Settings):
    """Settings of methods with several global models."""

    clusters: Annotated[int, SearchRange(2, 6), ANY_ON_NODES] = Field(default=3, ge=1)
    """c, the number of global models (centers)."""


def moved_centers(
    centers: Model,
    models: Sequence[Model],
    labels: NDArray[np.int64],
    weights: NDArray[np.float64],
    average: Callable[[Sequence[Model], NDArray[np.float64]], Model] = mean_model,
) -> Model:
    """Move each center (c, length) to the mean of its members; without members it stays.

    R models have labels (R,), the center of each, and weights (R,).
    """
    moved = {kind: rows.copy() for kind, rows in centers.items()}
    for center in np.unique(labels):
        members = np.flatnonzero(labels == center).tolist()
        mean = average([models[member] for member in members], weights[members])
        for kind, vector in mean.items():
            moved[kind][center] = vector
    return moved


@dataclass(frozen=True)
class ClusterState(ParameterState):
    """Several global models, and which clients have which."""

    centers: Model
    """The global models by kind, shape (c, length)."""
    labels: NDArray[np.int64]
    """Shape (N,), the center assigned to each client's last model; -1 before the first."""

    @cached_property
    def models(self) -> list[Model]:
        """The global models one by one, the same arrays for each client, so traffic counts once."""
        numbers = range(len(next(iter(self.centers.values()))))
        return [{kind: rows[k] for kind, rows in self.centers.items()} for k in numbers]


class ClusteredStrategy(ParameterStrategy):
    """A strategy with c global models, each the mean of the models of its clients."""

    settings: ClusterSettings
    state: ClusterState

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        """Refuse more clusters than clients."""
        clusters, most = ClusterSettings.model_validate(settings).clusters, plan.num_training
        refuse_above(f"{settings.table}.clusters", clusters, most, f"the {most} clients")

    def begin(self, initial: Arrays) -> ClusterState:
        """Start without cluster assignments."""
        unassigned = np.full(self.plan.num_clients, -1)
        return ClusterState(dict(initial), self.initial_centers(initial), unassigned)

    def initial_centers(self, initial: Arrays) -> Model:
        """Return the centers before the first round, (c, length) by kind: c initial models."""
        return stacked([initial] * self.settings.clusters)

    def with_more_clients(self) -> ClusterState:
        """Add clients without a center."""
        return replace(self.state, labels=padded(self.state.labels, self.plan.num_clients, -1))

    def moved(
        self, centers: Model, models: dict[int, Model], assigned: NDArray[np.int64]
    ) -> ClusterState:
        """Return the state after each center has moved to the mean of its members."""
        own, average = list(models.values()), AVERAGES[self.plan.mixing]
        centers = moved_centers(centers, own, assigned, self.weights_of(models), average)
        return replace(self.state, centers=centers, labels=self.labels_with(models, assigned))

    def labels_with(self, clients: Iterable[int], assigned: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the labels, (N,), with those of some clients, (R,), replaced."""
        labels = self.state.labels.copy()
        labels[list(clients)] = assigned
        return labels

    def results(self) -> Results:
        """Return the center of each client as ``clusters``, (N,), -1 for unassigned clients."""
        return Results(matrices={"clusters": self.state.labels})
