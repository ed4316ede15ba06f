"""FD, federated distillation: clients learn from the class-mean predictions of the others.

Client n replies with its mean soft prediction ``F_n[k]`` for the samples of each class k, (K, K).
In the next round it adds gamma times the cross-entropy to the mean of the *other* clients that
hold the class of the sample (Algorithm 1).

Differences from the paper
--------------------------
- Means are computed with the trained model over all training samples; the paper accumulates them
  during the training of a round.
- Classes are averaged over the clients that hold them. In the paper all clients hold all classes.
- The server subtracts a client's own share; in the paper the client does. A class that no other
  client holds is a row of zeros and adds nothing.
- Only the clients of the last round contribute. Federated augmentation is not implemented.
- Predictions are softmax outputs at temperature 1, as in the paper, which calls them logits.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.probabilities import check_simplex
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.core.state import State, padded
from strategies.prototypes import CLASS_COUNTS, CLASS_MEANS, ClassMeanStrategy, stacked


class FDSettings(Settings):
    """Settings of FD."""

    table = "fd"
    gamma: Annotated[float, SearchRange(0.03, 3.0, log=True), OnNodes(0, 10)] = Field(
        default=0.1, ge=0
    )
    """Weight of the cross-entropy to the mean prediction of the other clients; 0 is `local`."""


def means_of_others(means: NDArray[Any], holds: NDArray[Any]) -> NDArray[Any]:
    """Average each class over all other clients that hold it.

    With ``M_k`` holders of class k and their mean F this is ``(M F[k] - F_n[k]) / (M - 1)``. Means
    (N, K, K) are zeros where a client lacks a class, `holds` (N, K) is 1 where it holds one, else
    0. The result (N, K, K) is by client, class of the sample, probability; zeros where no other
    holds it.
    """
    others = holds.sum(axis=0) - holds
    sums = np.maximum(means.sum(axis=0) - means, 0)
    return np.where(others[..., None] > 0, sums / np.maximum(others, 1)[..., None], 0)


@dataclass(frozen=True)
class FDState(State):
    """What the clients learn from."""

    targets: NDArray[np.float32]
    """Shape (N, K, K), targets of the next round; (0, K, K) before the first."""


class FD(ClassMeanStrategy):
    """FD: clients send class-mean predictions and receive the means of the others."""

    record = ClassMeanStrategy.record.derived(
        paper=Paper(
            authors="E. Jeong, S. Oh, H. Kim, J. Park, M. Bennis, S.-L. Kim",
            title="Communication-Efficient On-Device Machine Learning: Federated "
            "Distillation and Augmentation under Non-IID Private Data",
            venue="NeurIPS workshop",
            year=2018,
            arxiv="1811.11479",
        ),
        exchanged="class-mean predictions",
        settings_type=FDSettings,
    )
    state: FDState

    @property
    def width(self) -> int:
        """K, one probability per class."""
        return self.plan.num_classes

    def begin(self, initial: Arrays) -> FDState:
        return FDState(np.empty((0, self.width, self.width), dtype=np.float32))

    def with_more_clients(self) -> FDState:
        targets = self.state.targets
        return FDState(padded(targets, self.plan.num_clients)) if len(targets) else self.state

    def check_reply(self, reply: Reply) -> None:
        super().check_reply(reply)
        held = reply.arrays[CLASS_COUNTS] > 0
        check_simplex(reply.arrays[CLASS_MEANS][held], CLASS_MEANS)

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Return the replies: probabilities are bounded, and counts do not weigh."""
        return replies

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the means of the other clients, from the second round on."""
        targets = self.state.targets
        return {"targets": targets[partition_id]} if len(targets) else {}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> FDState:
        """Compute each client's class means of the other clients."""
        clients, repliers = self.plan.num_clients, list(replies)
        means = np.zeros((clients, self.width, self.width))
        holds = np.zeros((clients, self.width))
        own_means, counts = stacked(replies)
        means[repliers], holds[repliers] = own_means, counts > 0
        return FDState(means_of_others(means, holds).astype(np.float32))
