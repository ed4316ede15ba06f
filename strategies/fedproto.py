"""FedProto: clients regularize features towards the global mean feature of the class.

Client n replies with the mean feature, or prototype, ``C_n[k]`` of each class k. The server
averages them, weighted by samples. In the next round clients add
``lambda / d ||h(x) - C[y]||²`` to their loss, and a sample is classified as the class of the
nearest global prototype.

Differences from the paper
--------------------------
- Eq. 6 has a further factor of one over the number of clients with the class, which would shrink
  prototypes. Here they are a mean weighted by samples; the released code uses an unweighted mean.
- lambda multiplies the mean over the d features, as in the released code, and not the sum of Eq. 7.
  The weight of a term then does not depend on d.
- A sample's own features are regularized, as in the released code. Eqs. 7 and 8 have the distance
  of a client's class means.
- A sample may be of any class that has a prototype, as in the paper. The released test searches
  only the client's own classes, which gives higher accuracies.
- A class that no client of a round holds keeps its prototype.
- Models with different feature widths get a linear layer. The paper's models have equal widths.
- ``fedproto.predict = "head"`` classifies by the head, like the other methods.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.replies import Arrays, Reply
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.core.state import State
from strategies.prototypes import ClassMeanStrategy, FeatureSettings, mean_by_class, stacked

PROTOTYPES, PROTOTYPE_FLAGS = "prototypes", "prototype-flags"
"""Names of the global prototypes, (K, d), and of flags, (K,), 1 for a class with a prototype."""


class PrototypeSettings(FeatureSettings):
    """Settings of methods that regularize features towards global prototypes."""

    prototype_weight: Annotated[float, SearchRange(0.1, 30.0, log=True), OnNodes(0, 10)] = Field(
        default=1.0, ge=0
    )
    """lambda, the weight of the squared distance to the prototype, averaged over the d features; 0
    is local training."""
    predict: Annotated[Literal["prototype", "head"], ANY_ON_NODES] = "prototype"
    """``prototype`` predicts the class of the nearest prototype, ``head`` uses the model's head."""


class FedProtoSettings(PrototypeSettings):
    """Settings of FedProto."""

    table = "fedproto"


@dataclass(frozen=True)
class PrototypeState(State):
    """The global prototypes."""

    prototypes: dict[str, NDArray[np.float32]]
    """The prototypes (K, d) and their flags (K,), by the names of messages."""


def no_prototypes(num_classes: int, width: int) -> dict[str, NDArray[np.float32]]:
    """Return prototypes (K, d) that no class has yet, with their flags."""
    return {
        PROTOTYPES: np.zeros((num_classes, width), dtype=np.float32),
        PROTOTYPE_FLAGS: np.zeros(num_classes, dtype=np.float32),
    }


def with_prototypes(
    before: Arrays, new: NDArray[Any], counts: NDArray[Any]
) -> dict[str, NDArray[np.float32]]:
    """Return global prototypes after a round, with their flags.

    Before it, the prototypes are (K, d) and their flags (K,). Of the new ones (K, d), rows of
    classes without samples are ignored; counts (R, K) are the repliers' numbers of samples.
    """
    held = counts.sum(axis=0) > 0
    known = held | (before[PROTOTYPE_FLAGS] > 0)
    return {
        PROTOTYPES: np.where(held[:, None], new, before[PROTOTYPES]).astype("float32"),
        PROTOTYPE_FLAGS: known.astype("float32"),
    }


class FedProto(ClassMeanStrategy):
    """FedProto (Algorithm 1): clients send class-mean features and receive global prototypes."""

    record = ClassMeanStrategy.record.derived(
        paper=Paper(
            authors="Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang",
            title="FedProto: Federated Prototype Learning across Heterogeneous Clients",
            venue="AAAI",
            year=2022,
            arxiv="2105.00243",
        ),
        exchanged="class-mean features",
        settings_type=FedProtoSettings,
        evaluates_trained_model=False,
    )
    state: PrototypeState

    def begin(self, initial: Arrays) -> PrototypeState:
        return PrototypeState(no_prototypes(self.plan.num_classes, self.width))

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the prototypes to every client, as soon as there are any."""
        prototypes = self.state.prototypes
        return prototypes if prototypes[PROTOTYPE_FLAGS].any() else {}

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        return self.state.prototypes

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> PrototypeState:
        """Average the prototypes of the classes that the repliers hold."""
        means, counts = stacked(replies)
        new = mean_by_class(means, counts)
        return PrototypeState(with_prototypes(self.state.prototypes, new, counts))
