"""FedPer: clients share the body of a model and keep a personal head.

A client trains body and head together and sends the body. The server averages the bodies, weighted
by training samples. The head, the last K_P layers, is never sent.

Differences from the paper
--------------------------
- K_P counts all layers with parameters from the output, including batch normalization; 1 is the
  last linear layer. For its ResNet the paper counts whole blocks.
- Heads start from one draw on all clients, or from one each with ``initial-weights = "own"``. A
  client that was never sampled is evaluated with an untrained head.
- Clients may be sampled; in the paper all clients participate in each round.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import ImpossiblePlanError, RunPlan, Settings
from strategies.core.settings_groups import ANY_ON_NODES
from strategies.parameters import ParameterStrategy


class FedPerSettings(Settings):
    """Settings of FedPer."""

    table = "fedper"
    personal_layers: Annotated[int, ANY_ON_NODES] = Field(default=1, ge=1)
    """K_P, the number of layers that stay on the client, counted from the output. If it covers the
    whole model, nothing is shared and the method is `local`."""


class FedPer(ParameterStrategy):
    """FedAvg of the body."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary",
            title="Federated Learning with Personalization Layers",
            year=2019,
            arxiv="1912.00818",
        ),
        exchanged="parameters of the body",
        settings_type=FedPerSettings,
        dp_sgd=True,
    )

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        if not isinstance(settings, FedPerSettings):
            raise ImpossiblePlanError(
                "FedPer needs fedper.personal-layers; derive "
                f"{type(settings).__name__} from FedPerSettings."
            )

    @classmethod
    def shared_layers(cls, settings: Settings) -> slice:
        assert isinstance(settings, FedPerSettings)
        return slice(None, -settings.personal_layers)
