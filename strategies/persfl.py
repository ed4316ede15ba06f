"""PersFL: each client distils from the global model that suits it best.

S. Divi, H. Farrukh, B. Celik, *Unifying Distillation with Personalization in Federated
Learning*, 2021, arXiv:2105.15191.

Stage 1 is FedAvg. Whenever a client receives the global model, it measures its validation
cross-entropy and keeps the best one seen: its optimal teacher. Stage 2 is one message after
the last round: each client distils from its teacher into a model of its own.

Differences from the paper
--------------------------
- The final global model counts as a teacher too, and so does the initial one.
- Eq. 4 is an unweighted mean, ``fedavg.weighting = "uniform"``, which the presets set; the default
  is McMahan's.
- The paper names neither the grid nor the criterion: lambda in {0, 0.25, 0.5, 0.75, 1} and T in
  {1, 5, 25} are consistent with Table 5; the pair with the best validation accuracy is kept,
  equals decided by validation cross-entropy and then by the order of the grid.
- At lambda = 0 the temperature has no effect, and only the first is run.
- Cross-entropy (Eq. 7) exceeds KL divergence (Eq. 3) by the teacher's entropy, which no weight
  of the student changes. So `PersFLGD` comes to the models of `PersFL`, up to rounding; the
  differences in Table 6 have some other cause.
"""

import math
from logging import INFO
from typing import Any, Literal

from flwr.supercore import log
from pydantic import Field, field_validator

from strategies.core.replies import Arrays, Metric
from strategies.fedavg import AveragingSettings, FedAvg
from strategies.parameters import Model

PERSONALIZE = "personalize"
"""Phase of the message that starts stage 2."""


class PersFLSettings(AveragingSettings):
    """Settings of PersFL's second stage.

    Attributes
    ----------
    imitation : tuple of float
        Candidates for lambda, separated by commas, each in [0, 1].
    temperatures : tuple of float
        Candidates for T, separated by commas, each above 0.
    distillation_epochs : int
        Epochs on the training data for each pair of the grid.
    distillation_learning_rate : float
        Step size of stage 2.
    teacher : str
        ``optimal``, or ``last`` for the final global model (the ablation of Table 4).
    """

    table = "persfl"
    imitation: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    temperatures: tuple[float, ...] = (1.0, 5.0, 25.0)
    distillation_epochs: int = Field(default=10, ge=1)
    distillation_learning_rate: float = Field(default=0.01, gt=0)
    teacher: Literal["optimal", "last"] = "optimal"

    @field_validator("imitation", "temperatures", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return (value,) if isinstance(value, int | float) else value

    @field_validator("imitation")
    @classmethod
    def _shares(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or not all(0 <= share <= 1 for share in value):
            raise ValueError("it should be one or more numbers in [0, 1], separated by commas")
        return value

    @field_validator("temperatures")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or not all(0 < temperature < math.inf for temperature in value):
            raise ValueError("it should be one or more numbers above 0, separated by commas")
        return value

    def grid(self) -> list[tuple[float, float]]:
        """Return the pairs (lambda, T) to try, in order."""
        return [
            (share, temperature)
            for share in self.imitation
            for temperature in (self.temperatures if share > 0 else self.temperatures[:1])
        ]


class PersFL(FedAvg):
    """FedAvg in stage 1, one message to every client in stage 2 (Algorithm 1).

    Up to the last round the global model is evaluated, then the personalized models.
    """

    settings_type = PersFLSettings
    needs_validation_data = True
    keeps_global_models = True
    evaluation_metrics = (
        Metric("lambda", low=0, high=1),
        Metric("temperature", low=0),
        Metric("teacher-round", low=0),
        Metric("teacher-accuracy", low=0, high=1),
        Metric("global-accuracy", low=0, high=1),
    )
    settings: PersFLSettings

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> None:
        """Average; after the last round, start stage 2 with the final global model."""
        super().aggregate_models(server_round, models)
        if server_round < self.plan.num_server_rounds:
            return
        log(INFO, "Stage 2: %d pairs of lambda and T at each client", len(self.settings.grid()))
        clients = self.reachable()
        personalized = self.exchange(
            PERSONALIZE, payloads=dict.fromkeys(clients, self.model), due=lambda n: {}
        )
        log(INFO, "Stage 2: %d of %d clients personalized", len(personalized), len(clients))

    def evaluate_payload(self, server_round: int, partition_id: int) -> Arrays:
        """Send the global model in stage 1; in stage 2 the client has its own."""
        if server_round == self.plan.num_server_rounds:
            return {}
        return super().evaluate_payload(server_round, partition_id)


class PersFLGD(PersFL):
    """PersFL with cross-entropy in place of KL divergence (§5.5, Eq. 7)."""
