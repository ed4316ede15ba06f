"""Metrics that the clients of several methods report."""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.serverapp import Grid

from strategies.core.client_info import ClientInfo
from strategies.core.counts import LARGEST_COUNT
from strategies.core.declarations import Data
from strategies.core.replies import Metric, Reply

TRAIN_LOSS = Metric("train-loss", through_model=True)
"""Mean training loss over all private samples of the round."""

MOVED_PRIVATE = Metric("moved-private", low=0, inputs=(), through_model=True)
"""Change of the weights by private training, relative to their norm."""

MOVED_PUBLIC = Metric("moved-public", low=0, inputs=(Data.PUBLIC,), through_model=True)
"""Change of the weights by knowledge of other clients, relative to their norm."""

GRADIENT_STEPS = Metric("gradient-steps", averaged=False, low=0, high=LARGEST_COUNT, inputs=())
"""Optimizer steps of a client in a round, of every kind. Every train reply may report them."""

FINE_TUNING_STEPS = Metric(
    "fine-tuning-steps",
    averaged=False,
    low=0,
    high=LARGEST_COUNT,
    inputs=(Data.TRAINING, Data.VALIDATION),
)
"""Optimizer steps between a client's last training and an evaluation; early ends tell of data."""

DP_EPSILON = Metric("dp-epsilon", averaged=False, low=0, inputs=())
"""Epsilon that a client has spent by DP-SGD since the start of the run."""

SECONDS = "seconds"
"""Seconds from the start of a round's exchanges to a client's replies, as the server measures."""

OF_TRAINING = (GRADIENT_STEPS, DP_EPSILON)
"""What the train replies of every method may report."""

SIZES = (
    Metric("num-examples", inputs=(), required=True),
    Metric("test-size", inputs=(Data.TEST,)),
    Metric("validation-size", inputs=(Data.VALIDATION,)),
)
"""What clients report when they join. Sizes that matter for results alone may be withheld."""


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


def add_to_metrics(
    metrics: dict[int, dict[str, float]],
    clients: Mapping[int, ClientInfo],
    replies: Mapping[int, Reply],
    grid: Grid | None,
) -> None:
    """Add gradient steps and times of a further exchange to the metrics of a round."""
    for n, reply in replies.items():
        before = metrics.setdefault(n, {})
        before[GRADIENT_STEPS.name] = gradient_steps([before, reply.metrics])
    add_times(metrics, clients, replies, grid)


def add_times(
    metrics: dict[int, dict[str, float]],
    clients: Mapping[int, ClientInfo],
    replies: Iterable[int],
    grid: Grid | None,
) -> None:
    """Add the seconds of replies to the metrics of a round, if the grid has `waited` by node id."""
    waited: Mapping[int, float] = getattr(grid, "waited", {})
    for n in replies:
        if (seconds := waited.get(clients[n].node_id)) is not None:
            before = metrics.setdefault(n, {})
            before[SECONDS] = round(before.get(SECONDS, 0.0) + seconds, 2)
