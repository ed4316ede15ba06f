"""HypCluster: several global models; each client trains the one with its lowest loss.

The server sends c hypotheses to every sampled client. The client chooses the one with the lowest
loss on its training data, trains it and returns it with its number. The server averages the replies
for each hypothesis, weighted by training samples. With one cluster this is FedAvg.

Differences from the paper
--------------------------
- Hypotheses start from independent draws of the model's initial weights. The paper does not specify
  the start and remarks that it matters. A hypothesis that no client chooses does not change.
- A client chooses again in every round and evaluation, by cross-entropy on its training data.
- The server has to trust the client's choice, since only the client can compute its losses. The
  weight of its model does not come from the reply.
"""

import numpy as np

from strategies.clusters import ClusteredStrategy, ClusterSettings, ClusterState
from strategies.core.declarations import BUFFERS, WEIGHTS, Sent
from strategies.core.method_record import Paper
from strategies.core.replies import Arrays, ExpectedArray, InvalidReplyError, Reply
from strategies.method import ServerModels
from strategies.parameters import Model, stacked

CLUSTER = "cluster"  # array of a reply: the number of the hypothesis that was trained, shape (1,)


class HypClusterSettings(ClusterSettings):
    """Settings of HypCluster."""

    table = "hypcluster"


class HypCluster(ClusteredStrategy):
    """Sends all hypotheses and collects the trained ones."""

    record = ClusteredStrategy.record.derived(
        paper=Paper(
            authors="Y. Mansour, M. Mohri, J. Ro, A. T. Suresh",
            title="Three Approaches for Personalization with Applications to Federated Learning",
            year=2020,
            arxiv="2002.10619",
        ),
        settings_type=HypClusterSettings,
        trains_new_clients=False,
        # Training samples choose the hypothesis that is trained.
        sends=(Sent(WEIGHTS, through_model=True), Sent(BUFFERS), Sent(CLUSTER)),
    )
    server_models: ServerModels

    def initial_centers(self, initial: Arrays) -> Model:
        further = (self.server_models.initial(k) for k in range(1, self.settings.clusters))
        return stacked([initial, *further])

    def model_for(self, partition_id: int) -> Model:
        """Return all hypotheses, (c, length) by kind: the same for every client."""
        return self.state.centers

    def sent_to(self, reply: Reply) -> Arrays:
        """Return the hypothesis that the client has trained."""
        cluster = reply.arrays[CLUSTER][0]
        return {kind: rows[cluster] for kind, rows in self.state.centers.items()}

    def extra_expected_arrays(self) -> dict[str, ExpectedArray]:
        return {CLUSTER: ExpectedArray((1,), "int64")}

    def check_reply(self, reply: Reply) -> None:
        if not 0 <= reply.arrays[CLUSTER][0] < self.settings.clusters:
            raise InvalidReplyError(
                f"{CLUSTER} = {reply.arrays[CLUSTER][0]} is outside 0..{self.settings.clusters - 1}"
            )

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ClusterState:
        """Average the models of each hypothesis."""
        chosen = np.array([reply.arrays[CLUSTER][0] for reply in replies.values()])
        return self.moved(self.state.centers, self.models_in(replies), chosen)

    def global_model(self) -> Arrays:
        return self.state.centers
