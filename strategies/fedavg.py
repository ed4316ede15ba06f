"""FedAvg, and FedAvg with local fine-tuning.

Differences from the paper
--------------------------
- A client's weight is the number of training samples that it reported when it joined, not a number
  in its reply. At most ``weight-cap`` times the median counts, 5 times by default.
  Updates longer than ``update-cap`` times the median are clipped, 10 times by default.
- Clients are sampled by this project's seeded draw. Accuracy is that of the global model on each
  client's test split. Fine-tuning (`FedAvgFineTuned`) changes nothing on the server.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class FedAvg(ParameterStrategy):
    """One global model, the mean of the clients' models."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas",
            title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
            venue="AISTATS",
            year=2017,
            arxiv="1602.05629",
        ),
        dp_sgd=True,
        trains_new_clients=False,
    )


class FineTuningSettings(Settings):
    """Settings of FedAvg with local fine-tuning."""

    table = "fedavg-ft"
    epochs: Annotated[int, SearchRange(1, 20, log=True), OnNodes(1, 100)] = Field(default=5, ge=1)
    """Epochs of fine-tuning on the client's training data before it is evaluated."""


class FedAvgFineTuned(FedAvg):
    """FedAvg with fine-tuning of the global model on each client before evaluation."""

    record = FedAvg.record.derived(paper=None, settings_type=FineTuningSettings)
