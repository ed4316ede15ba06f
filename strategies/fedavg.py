"""FedAvg, and FedAvg with local fine-tuning.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, *Communication-Efficient
Learning of Deep Networks from Decentralized Data*, AISTATS 2017, arXiv:1602.05629.

Differences from the paper
--------------------------
- A client's weight is the number of training samples that it reported when it joined, not a number
  in its reply.
- Clients are sampled by this project's seeded draw. Accuracy is that of the global model on each
  client's test split. Fine-tuning (`FedAvgFineTuned`) changes nothing on the server.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.plan import Settings
from strategies.core.search import SearchRange
from strategies.parameters import ParameterStrategy


class AveragingSettings(Settings):
    """Settings of the mean of models.

    Attributes
    ----------
    weighting : str
        ``samples`` weights a client's model by its number of training samples; ``uniform``
        weights all models equally, as in Eq. 4 of PersFL.
    """

    table = "fedavg"
    weighting: Literal["samples", "uniform"] = "samples"


class FedAvg(ParameterStrategy):
    """One global model, the mean of the clients' models."""

    paper = "McMahan et al. 2017"
    dp_sgd = True
    client_dp = True
    color_family = "fedavg"
    settings_type = AveragingSettings
    trains_new_clients = False
    settings: AveragingSettings

    def weights_of(self, partition_ids: Iterable[int]) -> NDArray[np.float64]:
        """Return the configured weights of clients in the mean."""
        weights = super().weights_of(partition_ids)
        return weights if self.settings.weighting == "samples" else np.ones_like(weights)


class FineTuningSettings(AveragingSettings):
    """Settings of FedAvg with local fine-tuning.

    Attributes
    ----------
    epochs : int
        Epochs of fine-tuning on the client's training data before it is evaluated.
    """

    table = "fedavg-ft"
    epochs: Annotated[int, SearchRange(1, 20, log=True)] = Field(default=5, ge=1)


class FedAvgFineTuned(FedAvg):
    """FedAvg with fine-tuning of the global model on each client before evaluation."""

    paper = "baseline"
    client_dp = True
    settings_type = FineTuningSettings
    settings: FineTuningSettings
