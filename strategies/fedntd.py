"""FedNTD: FedAvg whose clients keep what the global model says about the classes that are not true.

A client minimizes ``CE + beta * tau² * KL(q_g || q)`` from the global model that it received. q and
q_g are the soft predictions of its model and of the received one at temperature tau, over all
classes but the label of the sample. The server averages the models as in FedAvg.

Differences from the paper
--------------------------
- The loss was checked against the authors' code, not against the text of the paper. Its factor tau²
  is that of a public implementation that cites this code, which has none at the version at hand.
- beta = 1 and tau = 1, with which both are the same, are those of the authors' configuration.
- The received model is in evaluation mode, as in that implementation.
- Models are weighted by their training samples in the average.
- Momentum starts anew in each round, since the model is replaced.
- With two classes nothing is left to distill, and the method is FedAvg.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class FedNTDSettings(Settings):
    """Settings of FedNTD."""

    table = "fedntd"
    beta: Annotated[float, SearchRange(0.1, 3.0, log=True), OnNodes(0, 10)] = Field(
        default=1.0, ge=0
    )
    """Weight of the distillation; 0 is FedAvg."""
    temperature: Annotated[float, SearchRange(1.0, 5.0, log=True), OnNodes(0.1, 100)] = Field(
        default=1.0, gt=0
    )
    """tau of both soft predictions."""


class FedNTD(ParameterStrategy):
    """FedAvg's server; only the clients' loss differs."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="G. Lee, M. Jeong, Y. Shin, S. Bae, S.-Y. Yun",
            title="Preservation of the Global Knowledge by Not-True Distillation in "
            "Federated Learning",
            venue="NeurIPS",
            year=2022,
            arxiv="2106.03097",
        ),
        settings_type=FedNTDSettings,
        trains_new_clients=False,
    )
