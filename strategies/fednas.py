"""FedNAS as FedKMA's paper compares with it: FedKMA with a uniform knowledge-sharing matrix.

X. Wang, Z. Wang, *Personalized Federated Learning via Knowledge Sharing-based Model Structure
Adaption*, section V, manner 3: every client continues with the plain mean of all supernets, and
clients send no predictions.

Differences from the paper
--------------------------
- Those of `strategies.fedkma` that concern the search.
- It is not the method of He et al. (*FedNAS*, arXiv:2004.08546), which weights clients by their
  samples and searches by MiLeNAS.
"""

from strategies.supernets import SupernetStrategy


class FedNAS(SupernetStrategy):
    """FedKMA without knowledge sharing: M uniform (the paper's ablation, manner 3)."""

    paper = "Wang and Wang (FedKMA), manner 3"
