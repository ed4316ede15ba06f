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

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from strategies.core.plan import Settings
from strategies.core.replies import Metric
from strategies.core.search import SearchRange
from strategies.parameters import Model, ParameterStrategy, mean_model


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
    color_family = "fedavg"
    settings_type = AveragingSettings
    trains_new_clients = False
    settings: AveragingSettings

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> None:
        """Average the models with the configured weights."""
        is_uniform = self.settings.weighting == "uniform"
        weights = np.ones(len(models)) if is_uniform else self.sizes(models)
        self.model = mean_model(list(models.values()), weights)


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
    settings_type = FineTuningSettings
    settings: FineTuningSettings
    evaluation_metrics = (Metric("fine-tuning-loss", averaged=False),)
