"""Base of methods whose clients exchange one mean per class, of predictions or features.

A client replies with the means of its training samples by class, (K, d), and the numbers of
samples, (K,). Neither public data nor models are sent, so models may differ if they have the same
d.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import PersonalizedStrategy
from strategies.core.declarations import Sent
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.mixing import with_clipped_rows
from strategies.core.plan import Settings
from strategies.core.replies import ExpectedArray, InvalidReplyError, Reply
from strategies.core.settings_groups import OnNodes
from strategies.core.state import State
from strategies.method import ServerModels

CLASS_MEANS = "class-means"
"""Name of a reply's means, (K, d), one row per class; rows of absent classes are ignored."""

CLASS_COUNTS = "class-counts"
"""Name of a reply's numbers of samples, (K,), 0 for a class that the client lacks."""

HEAD_WEIGHT, HEAD_BIAS = "head-weight", "head-bias"
"""Names of the arrays of a head: weight, (K, d), and bias, (K,)."""


class FeatureSettings(Settings):
    """Settings of methods whose clients need features of the same width."""

    feature_width: Annotated[int, OnNodes(0, 4096)] = Field(default=0, ge=0)
    """d, the number of features that enter the head. A model with another number gets a linear
    layer before its head. 0 for the run's ``feature-width``; if that is 0 too, the models' own
    number where they agree, else 64."""


@dataclass(frozen=True)
class HeadState(State):
    """A shared head."""

    head: dict[str, NDArray[Any]]
    """Its weight (K, d) and bias (K,), by the names of messages; empty before there is one."""


class ClassMeanStrategy(PersonalizedStrategy):
    """A strategy whose clients reply with class means and counts, and nothing else."""

    record = PersonalizedStrategy.record.derived(
        sends=(Sent(CLASS_MEANS, through_model=True), Sent(CLASS_COUNTS)),
        train_metrics=(TRAIN_LOSS,),
    )
    server_models: ServerModels

    @property
    def width(self) -> int:
        """d, the length of a mean."""
        width: int = self.settings.feature_width  # type: ignore[attr-defined]
        return width or self.server_models.feature_width

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        classes = self.plan.num_classes
        return {
            CLASS_MEANS: ExpectedArray((classes, self.width)),
            CLASS_COUNTS: ExpectedArray((classes,)),
        }

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Clip long means by `update_cap`, and scale counts above the client's size."""
        bounded = with_clipped_rows(
            replies, CLASS_MEANS, lambda reply: reply.arrays[CLASS_COUNTS] > 0, self.plan.update_cap
        )
        for n, limit in zip(replies, self.round.sizes(replies), strict=True):
            arrays = bounded[n].arrays
            total = arrays[CLASS_COUNTS].sum(dtype=np.float64)
            if total > limit:
                scaled = arrays[CLASS_COUNTS] * np.float32(limit / total)
                bounded[n] = replace(bounded[n], arrays={**arrays, CLASS_COUNTS: scaled})
        return bounded

    def check_reply(self, reply: Reply) -> None:
        """Refuse counts that are impossible for the size of the client's data set."""
        counts = reply.arrays[CLASS_COUNTS]
        size = self.round.clients[reply.partition_id].num_examples
        if counts.min() < 0 or (counts != np.floor(counts)).any():
            raise InvalidReplyError(f"{CLASS_COUNTS} holds values that are not counts")
        if counts.sum(dtype=np.float64) > size:
            raise InvalidReplyError(f"{CLASS_COUNTS} sums to {counts.sum():g}, of {size} samples")


def stacked(replies: Mapping[int, Reply]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the repliers' class means (R, K, d), absent ones as zeros, and counts (R, K)."""
    counts = np.stack([reply.arrays[CLASS_COUNTS] for reply in replies.values()])
    means = np.stack([reply.arrays[CLASS_MEANS] for reply in replies.values()])
    return np.where(counts[..., None] > 0, means, 0), counts


def mean_by_class(means: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Average class means (R, K, d) over clients, with separate weights (R, K) per class."""
    totals = weights.sum(axis=0)
    shares = weights / np.where(totals > 0, totals, 1)
    return (shares[..., None] * means).sum(axis=0)
