"""FedKMA with a uniform knowledge-sharing matrix, an ablation of its paper.

Every client continues with the plain mean of all supernets, and clients send no predictions.

Differences from the paper
--------------------------
- Those of `strategies.fedkma` that concern the search.
- The paper's Table III calls this FedNAS, and has the same numbers in its row of SPIDER. The method
  of He et al. is `strategies.fednas`.
"""

from dataclasses import replace

from strategies.core.replies import Arrays
from strategies.fedkma import PAPER
from strategies.supernets import SupernetStrategy


class FedKMAUniform(SupernetStrategy):
    """FedKMA without knowledge sharing: M uniform (the paper's ablation, manner 3)."""

    record = SupernetStrategy.record.derived(paper=replace(PAPER, part="manner 3"))

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send equal mixtures as the same arrays, so that traffic counts them once."""
        mixed = self.model_for(partition_id)
        values = tuple(vector.tobytes() for vector in mixed.values())
        return self.round.once(values, lambda: mixed)
