"""FedMD: every client learns from the plain mean of all soft predictions.

D. Li, J. Wang, *FedMD: Heterogenous Federated Learning via Model Distillation*, NeurIPS 2019
workshop, arXiv:1910.03581.

Differences from the paper: soft predictions and unlabeled public samples as in KT-pFL, whose
protocol and settings are used; no training on a labeled public set.
"""

from typing import Any

from numpy.typing import NDArray

from strategies.kt_pfl import KTpFL


class FedMD(KTpFL):
    """FedMD's consensus: constant coefficients c = 1/N."""

    paper = "Li and Wang 2019"
    dp_sgd = True
    color_family = "fedmd"

    def updated_block(
        self, block: NDArray[Any], predictions: NDArray[Any], shares: NDArray[Any]
    ) -> NDArray[Any]:
        """Keep the coefficients at 1/N."""
        return block
