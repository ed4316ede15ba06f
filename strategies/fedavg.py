"""FedAvg, and FedAvg with local fine-tuning.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, *Communication-Efficient
Learning of Deep Networks from Decentralized Data*, AISTATS 2017, arXiv:1602.05629.

Differences from the paper
--------------------------
- A client's weight is the number of training samples that it told when it was met, not one in
  its reply: a reply could claim any.
- Clients are sampled by this project's seeded draw, and accuracy is that of the global model on
  each client's own test split. Fine-tuning (`FedAvgFineTuned`) changes nothing on the server.
"""

from pydantic import Field

from strategies.core.plan import Settings
from strategies.core.replies import Metric
from strategies.parameters import ParameterStrategy


class FedAvg(ParameterStrategy):
    """One global model, the mean of the clients' models weighted by their training samples."""


class FineTuningSettings(Settings):
    """Settings of local fine-tuning.

    Attributes
    ----------
    epochs : int
        Epochs on the client's own training data before it is evaluated.
    """

    table = "fedavg-ft"
    epochs: int = Field(default=5, ge=1)


class FedAvgFineTuned(FedAvg):
    """FedAvg whose clients fine-tune the global model on their own data before evaluation."""

    settings_type = FineTuningSettings
    evaluation_metrics = (Metric("fine-tuning-loss", averaged=False),)
