"""LG-FedAvg: clients share a head and keep the representation below it.

A client trains its whole model; the server averages the heads, the clients' last linear layers,
by their training samples, and the clients continue from the mean (Algorithm 1).

Differences from the paper
--------------------------
- Only the head is shared, so that bodies may have different architectures. Models with different
  feature widths get a linear layer, which stays on the client. The paper's models have one
  architecture and share two or more of their last layers.
- Clients of one architecture start from one draw of weights, and from one each with
  ``initial-weights = "own"``. The paper's better results start from a model trained by FedAvg,
  which is not done here.
- Momentum of the body is kept from round to round. The head's starts anew, since it is replaced.
- A client is evaluated with its own body and the mean head, the paper's *local test*. Its test on
  new clients by an ensemble and its adversarial term for fairness are not implemented.
"""

import numpy as np

from strategies.base import PersonalizedStrategy
from strategies.core.declarations import of_model
from strategies.core.method_record import Paper
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.mixing import with_clipped_updates
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.method import ServerModels
from strategies.parameters import AVERAGES
from strategies.prototypes import HEAD_BIAS, HEAD_WEIGHT, FeatureSettings, HeadState


class LGFedAvgSettings(FeatureSettings):
    """Settings of LG-FedAvg."""

    table = "lg-fedavg"


class LGFedAvg(PersonalizedStrategy):
    """LG-FedAvg: clients send heads and receive their mean."""

    record = PersonalizedStrategy.record.derived(
        paper=Paper(
            authors="P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. "
            "Salakhutdinov, L.-P. Morency",
            title="Think Locally, Act Globally: Federated Learning with Local and Global "
            "Representations",
            year=2020,
            arxiv="2001.01523",
        ),
        exchanged="heads",
        settings_type=LGFedAvgSettings,
        dp_sgd=True,
        averages_parameters=True,
        evaluates_trained_model=False,
        evaluates=("trained",),
        sends=(of_model(HEAD_WEIGHT), of_model(HEAD_BIAS)),
        train_metrics=(TRAIN_LOSS,),
    )
    settings: LGFedAvgSettings
    state: HeadState
    server_models: ServerModels

    def begin(self, initial: Arrays) -> HeadState:
        """Start without a head: each client has its own."""
        return HeadState({})

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the mean head to every client, from the second round on."""
        return self.state.head

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        return self.state.head

    def expected_arrays(self, server_round: int, partition_id: int) -> dict[str, ExpectedArray]:
        classes = self.plan.num_classes
        shape = classes, self.settings.feature_width or self.server_models.feature_width
        return {HEAD_WEIGHT: ExpectedArray(shape), HEAD_BIAS: ExpectedArray((classes,))}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> HeadState:
        """Average the heads."""
        heads = [dict(reply.arrays) for reply in replies.values()]
        return HeadState(AVERAGES[self.plan.mixing](heads, self.weights_of(replies)))

    def bounded(self, replies: dict[int, Reply]) -> dict[int, Reply]:
        """Clip updates of the head; in the first round, heads, since none was sent."""
        nothing = dict.fromkeys((HEAD_WEIGHT, HEAD_BIAS), np.zeros((), dtype=np.float32))
        sent = self.state.head or nothing
        return with_clipped_updates(replies, lambda _: sent, self.plan.update_cap)
