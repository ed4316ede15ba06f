"""FedKMA with a uniform knowledge-sharing matrix, an ablation of its paper.

X. Wang, Z. Wang, *Personalized Federated Learning via Knowledge Sharing-based Model Structure
Adaption*, section V, manner 3: every client continues with the plain mean of all supernets, and
clients send no predictions.

Differences from the paper
--------------------------
- Those of `strategies.fedkma` that concern the search.
- The paper's Table III calls this FedNAS, and has the same numbers in its row of SPIDER. The method
  of He et al. is `strategies.fednas`.
"""

from strategies.core.replies import Arrays
from strategies.supernets import SupernetStrategy


class FedKMAUniform(SupernetStrategy):
    """FedKMA without knowledge sharing: M uniform (the paper's ablation, manner 3)."""

    paper = "Wang and Wang (FedKMA), manner 3"

    def train_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send equal mixtures as the same arrays, so that traffic counts them once."""
        mixed = self.model_for(partition_id)
        values = tuple(vector.tobytes() for vector in mixed.values())
        return self.round.once(values, lambda: mixed)
