"""FML: mutual distillation of a private and a shared model on every client.

Besides its private model a client holds a copy of the shared model, the *meme*, and trains both on
its data by deep mutual learning,

    L_private = alpha CE + (1 - alpha) KL(p_meme || p_private)
    L_meme    = beta  CE + (1 - beta)  KL(p_private || p_meme).

The server averages the memes as in FedAvg; private models may have any architecture.

Differences from the paper
--------------------------
- Both models take their steps on the same batch; each loss updates only its own model.
- Momentum of the private model is kept. The meme's starts anew, since the meme is replaced.
- Private models of one architecture start from common weights, unless
  ``initial-weights = "own"``. The shared model's are drawn apart from them.
- Private label sets are not implemented: all clients share the classes.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.parameters import SharedModelSettings, SharedModelStrategy


class FMLSettings(SharedModelSettings):
    """Settings of FML."""

    table = "fml"
    alpha: Annotated[float, SearchRange(0.1, 0.9), ANY_ON_NODES] = Field(default=0.5, ge=0, le=1)
    """Weight of the labels in the loss of the private model; 1 is `local`."""
    beta: Annotated[float, ANY_ON_NODES] = Field(default=0.5, ge=0, le=1)
    """Weight of the labels in the loss of the shared model; 1 is FedAvg."""


class FML(SharedModelStrategy):
    """FedAvg's server on the shared model; only the clients differ."""

    record = SharedModelStrategy.record.derived(
        paper=Paper(
            authors="T. Shen, J. Zhang, X. Jia, F. Zhang, G. Huang, P. Zhou, K. Kuang, F. Wu, "
            "C. Wu",
            title="Federated Mutual Learning",
            year=2020,
            arxiv="2006.16765",
        ),
        settings_type=FMLSettings,
        dp_sgd=True,
    )
