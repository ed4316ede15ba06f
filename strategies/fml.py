"""FML: a private and a shared model teach each other on every client.

T. Shen, J. Zhang, X. Jia, F. Zhang, G. Huang, P. Zhou, K. Kuang, F. Wu, C. Wu, *Federated Mutual
Learning*, 2020, arXiv:2006.16765.

Beside its private model a client holds a copy of the shared one, the *meme*, and trains both on
its own data by deep mutual learning,

    L_private = alpha CE + (1 - alpha) KL(p_meme || p_private)
    L_meme    = beta  CE + (1 - beta)  KL(p_private || p_meme).

The server averages the memes as FedAvg does; private models may be of any architecture.

Differences from the paper
--------------------------
- Both models take each step at once on the same batch, and neither loss moves the other's model.
- Momentum starts anew in each round, since the meme is replaced.
- The paper's data heterogeneity by private labels is left out: all clients share the classes.
"""

from pydantic import Field

from strategies.parameters import SharedModelSettings, SharedModelStrategy


class FMLSettings(SharedModelSettings):
    """Settings of FML.

    Attributes
    ----------
    alpha : float
        Weight of the labels in the loss of the private model; 1 is `local`.
    beta : float
        Weight of the labels in the loss of the shared model; 1 is FedAvg.
    """

    table = "fml"
    alpha: float = Field(default=0.5, ge=0, le=1)
    beta: float = Field(default=0.5, ge=0, le=1)


class FML(SharedModelStrategy):
    """FedAvg's server on the shared model; only the clients differ."""

    settings_type = FMLSettings
