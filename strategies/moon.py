"""MOON: FedAvg whose clients keep their features near those of the global model.

A client minimizes ``CE + mu * l`` from the global model that it received. With the features z of
its model, z_g of the received model and z_p of the model that it had after its previous training,

    l = -log(exp(cos(z, z_g) / tau) / (exp(cos(z, z_g) / tau) + exp(cos(z, z_p) / tau))).

The server averages the models as in FedAvg (Algorithm 1).

Differences from the paper
--------------------------
- The features are the input of the model's head. The paper adds a projection of two layers to its
  networks, and compares the output of that.
- mu = 1 is the default of this project. The paper chooses mu among 0.1, 1, 5 and 10 for each data
  set, and has tau = 0.5.
- Before its first training a client's initial network takes the place of its previous model. The
  paper leaves the first round open. With ``initial-weights = "common"`` and in the first round, the
  term then has no gradient.
- The received and the previous model are in evaluation mode. The paper does not say.
- Models are weighted by their training samples in the average.
- Momentum starts anew in each round, since the model is replaced.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class MOONSettings(Settings):
    """Settings of MOON."""

    table = "moon"
    mu: Annotated[float, SearchRange(0.1, 10.0, log=True), OnNodes(0, 10)] = Field(
        default=1.0, ge=0
    )
    """Weight of the contrastive term; 0 is FedAvg."""
    temperature: Annotated[float, OnNodes(0.1, 100)] = Field(default=0.5, gt=0)
    """tau of the contrastive term."""


class MOON(ParameterStrategy):
    """FedAvg's server; only the clients' loss differs."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="Q. Li, B. He, D. Song",
            title="Model-Contrastive Federated Learning",
            venue="CVPR",
            year=2021,
            arxiv="2103.16257",
        ),
        settings_type=MOONSettings,
        trains_new_clients=False,
    )
