"""FedGH: the server trains a shared head on the clients' mean features.

A client replaces its head by the global head, trains its whole model on private data, and replies
with the mean feature of each class. The server trains the head on pairs (mean feature, class).

Differences from the paper
--------------------------
- The server takes one step on all pairs of a client, client by client, in ``server-epochs`` passes.
  The paper takes one step per pair, once.
- A client is evaluated with the head after local training.
- Momentum of the body is kept from round to round. The head's starts anew, since it is replaced.
- Models with different feature widths get a linear layer. The paper's models have equal widths.
"""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.probabilities import softmax
from strategies.core.randomness import random_generator
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.prototypes import (
    HEAD_BIAS,
    HEAD_WEIGHT,
    ClassMeanStrategy,
    FeatureSettings,
    HeadState,
    stacked,
)


class FedGHSettings(FeatureSettings):
    """Settings of FedGH."""

    table = "fedgh"
    server_learning_rate: Annotated[float, SearchRange(0.003, 0.3, log=True), ANY_ON_NODES] = Field(
        default=0.01, gt=0
    )
    """Step size of the server when it trains the shared head."""
    server_epochs: Annotated[int, ANY_ON_NODES] = Field(default=10, ge=1)
    """Passes of the server over the class means of a round's clients."""


def head_step(
    weight: NDArray[Any],
    bias: NDArray[Any],
    features: NDArray[Any],
    classes: NDArray[np.intp],
    rate: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Take one gradient step of a head on features (M, d) and their classes (M,)."""
    errors = softmax(features @ weight.T + bias)
    errors[np.arange(len(classes)), classes] -= 1
    errors /= len(classes)
    return weight - rate * errors.T @ features, bias - rate * errors.sum(axis=0)


class FedGH(ClassMeanStrategy):
    """FedGH (Algorithm 1): clients send class-mean features and receive the head."""

    record = ClassMeanStrategy.record.derived(
        paper=Paper(
            authors="L. Yi, G. Wang, X. Liu, Z. Shi, H. Yu",
            title="FedGH: Heterogeneous Federated Learning with Generalized Global Header",
            venue="ACM MM",
            year=2023,
            arxiv="2303.13137",
        ),
        exchanged="class-mean features and a head",
        settings_type=FedGHSettings,
        evaluates=("received",),
    )
    settings: FedGHSettings
    state: HeadState

    def begin(self, initial: Arrays) -> HeadState:
        """Initialize the head like a linear layer of PyTorch."""
        generator, bound = random_generator(self.plan.seed, "head"), self.width**-0.5
        weight = generator.uniform(-bound, bound, (self.plan.num_classes, self.width))
        bias = generator.uniform(-bound, bound, self.plan.num_classes)
        return HeadState({HEAD_WEIGHT: weight.astype("float32"), HEAD_BIAS: bias.astype("float32")})

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        return self.state.head

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> HeadState:
        """Train the head on the mean features, client by client."""
        head = self.state.head
        weight, bias = (head[name].astype(np.float64) for name in (HEAD_WEIGHT, HEAD_BIAS))
        for _ in range(self.settings.server_epochs):
            for means, counts in zip(*stacked(replies), strict=True):
                held = np.flatnonzero(counts)
                if len(held):
                    rate = self.settings.server_learning_rate
                    weight, bias = head_step(weight, bias, means[held], held, rate)
        return HeadState({HEAD_WEIGHT: weight.astype("float32"), HEAD_BIAS: bias.astype("float32")})
