"""SPIDER: each client prunes a personal supernet, regularized towards a shared supernet.

Every client trains two supernets. The shared one w is FedAvg's. The personal one v minimizes
``F(v) + lambda / 2 * ||v - w||²`` with the received w. Every few rounds one of its edges is pruned,
until all are: each remaining operation is removed in turn. The operation whose removal decreases
validation accuracy most is kept, and the others are pruned. The personal supernet stays on the
client and is evaluated.

Differences from the paper
--------------------------
- As in the authors' implementation, whole edges are pruned at once, one random edge of the normal
  and one of the reduction cells at a time. Architecture weights are pruned and never trained.
- Pruning is spread over the rounds of the run (`SpiderSettings.schedule`); the authors start in
  round 30 and prune every 20 rounds, and so need 300 rounds. A run that is too short is refused.
- A client that was not sampled when an edge was due prunes it when it is sampled next.
- A client that joins after the training prunes in the same rounds, counted from its first. Too few
  `new-client-rounds` are refused.
- A pruned operation has weight zero in its edge's mixture but is still computed, so no time is
  saved.
- Batch-normalization statistics are re-estimated before each candidate is evaluated, as for every
  evaluation of a supernet here. Ties in accuracy are broken by the larger validation loss.
- After all edges are pruned, the authors keep only two edges per node; here all edges remain.
- Gradients are not clipped, and both supernets use the same step size and weight decay.
- A client that was never sampled is evaluated with its initial weights.
- A network without architecture weights is not pruned; only the proximal term remains.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.declarations import ALPHAS, BUFFERS, WEIGHTS, Data, Sent, of_model
from strategies.core.method_record import Need, Paper
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.plan import Settings
from strategies.core.replies import Metric
from strategies.core.settings_groups import ANY_ON_NODES, OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class SpiderSettings(Settings):
    """Settings of the personal supernet."""

    table = "spider"
    proximal_weight: Annotated[float, SearchRange(0.001, 1.0, log=True), OnNodes(0, 0.1)] = Field(
        default=0.01, ge=0
    )
    """lambda, the weight of the distance between the personal and the shared supernet."""
    prune_from: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """First round in which an edge is pruned to one operation; 0 for a fifth of the rounds, or
    earlier if they would be too few."""
    prune_every: Annotated[int, ANY_ON_NODES] = Field(default=0, ge=0)
    """Number of rounds from one pruned edge to the next; 0 to spread them over the rounds."""

    def schedule(self, edges: int, num_rounds: int) -> range:
        """Return the rounds in which an edge of each kind of cell is pruned, one for each edge."""
        first = self.prune_from or max(1, min(num_rounds // 5, num_rounds - edges + 1))
        every = self.prune_every or max(1, (num_rounds - first + 1) // edges)
        rounds = range(first, first + every * edges, every)
        if rounds[-1] > num_rounds:
            spread = ", or spider.prune-from and spider.prune-every to 0"
            raise ValueError(
                f"spider prunes {edges} edges of a cell one after the other, the last in round "
                f"{rounds[-1]} of {num_rounds}; set num-server-rounds to at least {rounds[-1]}"
                f"{spread if num_rounds >= edges else ''}."
            )
        return rounds

    def check_rounds(self, edges: int, num_rounds: int, of_new_clients: int) -> None:
        """Refuse rounds, also of a new client, in which not all edges of a cell can be pruned."""
        last = self.schedule(edges, num_rounds)[-1]
        if 0 < of_new_clients < last:
            raise ValueError(
                f"spider prunes the last edge in round {last}, and new clients take "
                f"new-client-rounds = {of_new_clients}; set new-client-rounds to at least {last}, "
                "or to 0 for as many as the run has."
            )


class Spider(ParameterStrategy):
    """FedAvg's server for the shared supernet; clients are evaluated with their own."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="E. Mushtaq, C. He, J. Ding, S. Avestimehr",
            title="SPIDER: Searching Personalized Neural Architecture for Federated Learning",
            year=2021,
            arxiv="2112.13939",
        ),
        needs=(Need.ONE_ARCHITECTURE, Need.VALIDATION_DATA, Need.COUNTS),
        settings_type=SpiderSettings,
        evaluates_trained_model=True,
        evaluates=(),
        # Validation samples choose the operations that are left.
        sends=(
            of_model(WEIGHTS, Data.VALIDATION),
            of_model(ALPHAS, Data.VALIDATION),
            Sent(BUFFERS, inputs=(Data.TRAINING, Data.VALIDATION)),
        ),
        train_metrics=(TRAIN_LOSS, Metric("operations", low=0, inputs=(), through_model=True)),
    )
