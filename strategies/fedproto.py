"""FedProto: clients regularize features towards the global mean feature of the class.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang, *FedProto: Federated Prototype
Learning across Heterogeneous Clients*, AAAI 2022, arXiv:2105.00243.

Client n replies with the mean feature, or prototype, ``C_n[k]`` of each class k. The server
averages them, weighted by samples. In the next round clients add
``lambda ||h(x) - C[y]||²`` to their loss, and a sample is classified as the class of the nearest
global prototype.

Differences from the paper
--------------------------
- Eq. 6 has a further factor of one over the number of clients with the class, which would shrink
  prototypes. Here they are a mean weighted by samples; the released code uses an unweighted mean.
- The squared distance is summed over the d features as in Eq. 7. The released code averages it, so
  that its lambda of 1 is 1 / d here.
- A class that no client of a round holds keeps its prototype.
- Models with different feature widths get a linear layer. The paper's models have equal widths.
- ``fedproto.predict = "head"`` classifies by the head, like the other methods.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.plan import Settings
from strategies.core.replies import Arrays, Reply
from strategies.core.search import SearchRange
from strategies.prototypes import ClassMeanStrategy, FeatureSettings, mean_by_class, stacked

PROTOTYPES, PROTOTYPE_FLAGS = "prototypes", "prototype-flags"
"""Names of the global prototypes, (K, d), and of flags, (K,), 1 for a class with a prototype."""


class PrototypeSettings(FeatureSettings):
    """Settings of methods that regularize features towards global prototypes.

    Attributes
    ----------
    prototype_weight : float
        lambda, the weight of the squared distance to the prototype; 0 is local training.
    predict : str
        ``prototype`` predicts the class of the nearest prototype, ``head`` uses the model's head.
    """

    prototype_weight: Annotated[float, SearchRange(0.005, 1.0, log=True)] = Field(
        default=0.02, ge=0
    )
    predict: Literal["prototype", "head"] = "prototype"


class FedProtoSettings(PrototypeSettings):
    """Settings of FedProto."""

    table = "fedproto"


class FedProto(ClassMeanStrategy):
    """FedProto (Algorithm 1): clients send class-mean features and receive global prototypes.

    Attributes
    ----------
    prototypes : dict of str to ndarray
        The prototypes (K, d) and their flags (K,) in network format.
    """

    paper = "Tan et al. 2022"
    exchanged = "class-mean features"
    color_family = "fedproto"
    settings_type: ClassVar[type[Settings]] = FedProtoSettings
    settings: PrototypeSettings
    evaluates_trained_model = False
    kept: ClassVar[tuple[str, ...]] = ("prototypes",)
    prototypes: dict[str, NDArray[np.float32]]

    def begin(self, initial: Arrays) -> None:
        """Start without prototypes."""
        classes = self.plan.num_classes
        self.prototypes = {
            PROTOTYPES: np.zeros((classes, self.width), dtype=np.float32),
            PROTOTYPE_FLAGS: np.zeros(classes, dtype=np.float32),
        }

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the prototypes to every client, as soon as there are any."""
        return self.prototypes if self.prototypes[PROTOTYPE_FLAGS].any() else {}

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the prototypes for classification."""
        return self.prototypes

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Update the prototypes of the classes that the repliers hold."""
        means, counts = stacked(replies)
        held = counts.sum(axis=0) > 0
        new = self.new_prototypes(server_round, means, counts)
        known = held | (self.prototypes[PROTOTYPE_FLAGS] > 0)
        self.prototypes = {
            PROTOTYPES: np.where(held[:, None], new, self.prototypes[PROTOTYPES]).astype("float32"),
            PROTOTYPE_FLAGS: known.astype("float32"),
        }

    def new_prototypes(
        self, server_round: int, means: NDArray[np.float32], counts: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the round's prototypes, (K, d); rows of classes without samples are ignored.

        Parameters
        ----------
        server_round : int
            Round of the run.
        means : ndarray
            Shape (R, K, d), the repliers' prototypes, zeros where a client lacks a class.
        counts : ndarray
            Shape (R, K), their numbers of samples.
        """
        return mean_by_class(means, counts)
