"""pFedMe: personal models regularized towards a global model, by Moreau envelopes.

For each batch a client moves its personal model theta towards the minimum of
``f(theta; batch) + lambda / 2 * ||theta - w||²`` by K steps, and updates its copy of the
global model, ``w <- w - eta lambda (w - theta)``. The server continues with
``(1 - beta) w + beta * mean of the clients' w``; theta is evaluated (Algorithm 1).

Differences from the paper
--------------------------
- theta starts from w in each round and continues from batch to batch, as in the authors' released
  implementation. The paper does not specify the start.
- Models are weighted by training samples; the paper weights all clients equally.
- A round has as many batches as the run's epochs, each drawn at random as in Algorithm 1.
- eta is the run's ``learning-rate``. theta and w have no momentum; the run's setting is ignored.
- Batch-normalization statistics are those of theta and are averaged.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Need, Paper
from strategies.core.plan import ImpossiblePlanError, RunPlan, Settings
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, OnNodes, SearchRange
from strategies.parameters import Model, ParameterState, ParameterStrategy, step_towards


class PFedMeSettings(Settings):
    """Settings of pFedMe."""

    table = "pfedme"
    personalization_weight: Annotated[float, SearchRange(0.5, 30.0, log=True), DEFAULT_ON_NODES] = (
        Field(default=15.0, gt=0)
    )
    """lambda; the larger it is, the closer the personal model theta stays to the local copy w."""
    personal_steps: Annotated[int, OnNodes(1, 100)] = Field(default=5, ge=1)
    """K, the number of steps on theta per batch."""
    personal_learning_rate: Annotated[float, SearchRange(0.005, 0.3, log=True), OnNodes(0, 1)] = (
        Field(default=0.03, gt=0)
    )
    """Step size of the steps on theta."""
    beta: Annotated[float, ANY_ON_NODES] = Field(default=1.0, gt=0)
    """The server's step towards the mean of the clients' w; 1 takes the mean itself."""


class PFedMe(ParameterStrategy):
    """FedAvg's server with step size beta; personal models stay on the clients."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="C. T. Dinh, N. H. Tran, T. D. Nguyen",
            title="Personalized Federated Learning with Moreau Envelopes",
            venue="NeurIPS",
            year=2020,
            arxiv="2006.08848",
        ),
        needs=(Need.ONE_ARCHITECTURE, Need.PLAIN_DESCENT),
        settings_type=PFedMeSettings,
        evaluates=("global",),
    )
    settings: PFedMeSettings

    @classmethod
    def check_plan(cls, plan: RunPlan, settings: Settings) -> None:
        assert isinstance(settings, PFedMeSettings)
        if settings.personalization_weight * settings.personal_learning_rate < 2:
            return
        raise ImpossiblePlanError(
            "pfedme.personalization-weight times pfedme.personal-learning-rate is "
            f"{settings.personalization_weight * settings.personal_learning_rate:g}, and the "
            "personal model diverges unless it is below 2; set one of the two lower."
        )

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> ParameterState:
        """Step towards the mean of the clients' w."""
        moved = step_towards(self.state.model, self.average(models), self.settings.beta)
        return replace(self.state, model=moved)
