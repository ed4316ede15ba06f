"""Metrics that the clients of several methods report."""

from collections.abc import Iterable, Mapping
from typing import Any

from strategies.core.measures import LARGEST_COUNT
from strategies.core.replies import Metric, Reply

TRAIN_LOSS = Metric("train-loss")
"""Mean training loss over all private samples of the round."""

MOVED_PRIVATE = Metric("moved-private", low=0)
"""Change of the weights by private training, relative to their norm."""

MOVED_PUBLIC = Metric("moved-public", low=0)
"""Change of the weights by knowledge of other clients, relative to their norm."""

GLOBAL_ACCURACY = Metric("global-accuracy", averaged=False, low=0, high=1)
"""Accuracy of the global model on the client's test split."""

GRADIENT_STEPS = Metric("gradient-steps", averaged=False, low=0, high=LARGEST_COUNT)
"""Optimizer steps of a client in a round, of every kind. Every train reply may report them."""

FINE_TUNING_STEPS = Metric("fine-tuning-steps", averaged=False, low=0, high=LARGEST_COUNT)
"""Optimizer steps of a client between its last training and an evaluation."""

DP_EPSILON = Metric("dp-epsilon", averaged=False, low=0)
"""Epsilon that a client has spent by DP-SGD since the start of the run."""

OF_TRAINING = (GRADIENT_STEPS, DP_EPSILON)
"""What the train replies of every method may report."""


def columns_of_training(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the columns of a round that follow from `OF_TRAINING`, from the metrics of each."""
    rows = list(metrics)
    return {GRADIENT_STEPS.column: gradient_steps(rows), **largest_epsilon(rows)}


def fine_tuning_steps(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the steps of fine-tuning for some evaluations as a column; nothing without them."""
    steps = sum(int(row.get(FINE_TUNING_STEPS.column, 0)) for row in evaluations)
    return {FINE_TUNING_STEPS.column: steps} if steps else {}


def largest_epsilon(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest epsilon of a client as ``dp_epsilon_max``; nothing without DP-SGD."""
    values = [row[DP_EPSILON.name] for row in metrics if DP_EPSILON.name in row]
    return {f"{DP_EPSILON.column}_max": max(values)} if values else {}


def gradient_steps(metrics: Iterable[Mapping[str, float]]) -> int:
    """Return the gradient steps of all clients, from the metrics of each."""
    return sum(int(row.get(GRADIENT_STEPS.name, 0)) for row in metrics)


def add_gradient_steps(metrics: dict[int, dict[str, float]], replies: Mapping[int, Reply]) -> None:
    """Add the steps of a further exchange to the metrics of a round, by partition-id."""
    for n, reply in replies.items():
        before = metrics.setdefault(n, {})
        before[GRADIENT_STEPS.name] = gradient_steps([before, reply.metrics])
