"""SPIDER: each client prunes a supernet of its own, held near one that all train together.

E. Mushtaq, C. He, J. Ding, S. Avestimehr, *SPIDER: Searching Personalized Neural Architecture for
Federated Learning*, 2021, arXiv:2112.13939.

Every client trains two supernets. The shared one w is FedAvg's. The personal one v minimizes
``F(v) + lambda / 2 * ||v - w||²`` with w as received; every few rounds one edge of it is decided:
each remaining operation is left out in turn, and the one without which validation accuracy falls
most is kept, all others are pruned. The personal supernet stays with the client and is evaluated.

Differences from the paper
--------------------------
- Order, constants and the decision of a whole edge at once follow the authors' implementation, as
  does one edge of the normal and one of the reduction cells at a time, drawn at random, and that
  architecture weights are pruned and never trained.
- A pruned operation has weight zero in its edge's mixture and is still computed; no time is saved.
- Running statistics are taken anew before each candidate is measured, as wherever a supernet is
  evaluated here. Of equal accuracies the larger validation loss decides.
- Once all edges are decided, the authors also leave each node two of its edges; here all remain.
- Gradients are not cut, and one step size and weight decay serve both supernets.
- A client that was never sampled is evaluated with initial weights of its own.
- A network without architecture weights has nothing to prune, and only the tie remains.
"""

from pydantic import Field

from strategies.core.metrics import TRAIN_LOSS
from strategies.core.plan import Settings
from strategies.core.replies import Arrays, Metric
from strategies.parameters import ParameterStrategy


class SpiderSettings(Settings):
    """Settings of the personal supernet.

    Attributes
    ----------
    proximal_weight : float
        lambda, the weight of the distance between the personal and the shared supernet.
    prune_from : int
        First round in which an edge is pruned to one operation.
    prune_every : int
        Number of rounds from one pruned edge to the next.
    """

    table = "spider"
    proximal_weight: float = Field(default=0.01, ge=0)
    prune_from: int = Field(default=30, ge=1)
    prune_every: int = Field(default=20, ge=1)

    def prunes_in(self, server_round: int) -> bool:
        """Return whether an edge is pruned in a round."""
        since = server_round - self.prune_from
        return since >= 0 and since % self.prune_every == 0


class Spider(ParameterStrategy):
    """FedAvg's server for the shared supernet; clients are evaluated with their own."""

    settings_type = SpiderSettings
    evaluates_trained_model = True
    needs_validation_data = True
    train_metrics = (TRAIN_LOSS, Metric("operations", low=0))

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send nothing: the client has its own model."""
        return {}
