"""LG-FedAvg: clients share a head and keep the representation below it.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P.
Morency, *Think Locally, Act Globally: Federated Learning with Local and Global
Representations*, 2020, arXiv:2001.01523.

A client trains its whole model; the server averages the heads, the clients' last linear layers,
by their training samples, and the clients go on from the mean (Algorithm 1).

Differences from the paper
--------------------------
- The shared part is the head alone, so that the bodies may be of different architectures; models
  of different widths agree on one by a linear layer of their own, which stays on the client. The
  paper's models are alike and share two or more of their last layers.
- Clients start from heads of their own, and there is no FedAvg beforehand, from whose model the
  paper's better results start.
- Momentum lives on from round to round, the head's too, though the head itself is replaced.
- A client is evaluated with its own body and the mean head, the paper's *local test*. Its test on
  new clients by an ensemble, and its adversarial term for fair representations, are left out.
"""

import numpy as np
from numpy.typing import NDArray

from strategies.base import PersonalizedStrategy
from strategies.core.replies import Arrays, Due, Reply
from strategies.parameters import mean_model
from strategies.prototypes import HEAD_BIAS, HEAD_WEIGHT, FeatureSettings


class LGFedAvgSettings(FeatureSettings):
    """Settings of LG-FedAvg."""

    table = "lg-fedavg"


class LGFedAvg(PersonalizedStrategy):
    """LG-FedAvg: heads up, their mean down.

    Attributes
    ----------
    head : dict of str to ndarray
        The mean head, as it travels; empty before the first round.
    """

    settings_type = LGFedAvgSettings
    settings: LGFedAvgSettings
    evaluates_trained_model = False
    kept = ("head",)
    head: dict[str, NDArray[np.float32]]

    def begin(self, initial: Arrays) -> None:
        """Start without a head: each client has its own."""
        self.head = {}

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the mean head, the same to every client, from the second round on."""
        return self.head

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the mean head."""
        return self.head

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, Due]:
        """Ask for a head, (K, d) and (K,)."""
        classes = self.plan.num_classes
        shape = classes, self.settings.feature_width
        return {HEAD_WEIGHT: Due(shape), HEAD_BIAS: Due((classes,))}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Average the heads by the clients' training samples."""
        heads = [reply.arrays for reply in replies.values()]
        self.head = mean_model(heads, self.sizes(replies))
