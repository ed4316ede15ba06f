"""FedDyn: each client's objective is shifted so that its minimum agrees with the global one.

Client k minimizes ``L_k(w) - <g_k, w> + alpha / 2 * ||w - w_s||²`` from the server's model w_s, and
then subtracts ``alpha (w - w_s)`` from g_k, which is zero at first. The server has a state h, zero
at first. With the models of the |P| of m clients that took part, it subtracts
``alpha / m * sum(w_k - w_s)`` from h, and continues with ``mean(w_k) - h / alpha`` (Algorithm 1).

Differences from the paper
--------------------------
- Each client takes the run's steps with the run's optimizer; the paper asks for the minimum.
  Momentum starts anew in each round, since the model is replaced.
- All clients count alike, as in the paper, while the other methods here weigh them by samples. With
  ``mixing = "median"`` or ``"trimmed-mean"`` that average takes the place of both means.
- The default alpha = 0.1 is among the values that the paper tries, 0.1, 0.01 and 0.001.
- The server's model w_s is evaluated. The authors' code reports the mean of the clients' models. It
  also divides alpha by a client's relative number of samples, which Algorithm 1 does not.
- Batch-normalization statistics are averaged without h.
- If a reply is lost, g_k of its client has changed and h has not. A wrong reply stays in h.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from strategies.core.declarations import BUFFERS
from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.replies import Arrays
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import AVERAGES, Model, ParameterState, ParameterStrategy


class FedDynSettings(Settings):
    """Settings of FedDyn."""

    table = "feddyn"
    alpha: Annotated[float, SearchRange(0.003, 1.0, log=True), OnNodes(0, 0.1)] = Field(
        default=0.1, gt=0
    )
    """alpha of the quadratic term; a small alpha lets the server take long steps."""


@dataclass(frozen=True)
class FedDynState(ParameterState):
    """The server's model, and its sum of the clients' drifts."""

    drift: Model
    """h, float32 vectors like those of the model, without buffers."""


class FedDyn(ParameterStrategy):
    """FedDyn's server (Algorithm 1)."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="D. A. E. Acar, Y. Zhao, R. M. Navarro, M. Mattina, P. N. Whatmough, "
            "V. Saligrama",
            title="Federated Learning Based on Dynamic Regularization",
            venue="ICLR",
            year=2021,
            arxiv="2111.04263",
        ),
        settings_type=FedDynSettings,
        dp_sgd=True,
        trains_new_clients=False,
    )
    settings: FedDynSettings
    state: FedDynState

    def begin(self, initial: Arrays) -> FedDynState:
        zeros = {kind: np.zeros_like(v) for kind, v in initial.items() if kind != BUFFERS}
        return FedDynState(dict(initial), drift=zeros)

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> FedDynState:
        """Update h by the mean drift, and step from the mean model against h."""
        model, alpha = self.state.model, np.float32(self.settings.alpha)
        mean = AVERAGES[self.plan.mixing](list(models.values()), np.ones(len(models)))
        share = np.float32(len(models) / self.plan.num_training)
        drift = {
            kind: sum_before - alpha * share * (mean[kind] - model[kind])
            for kind, sum_before in self.state.drift.items()
        }
        moved = {kind: mean[kind] - vector / alpha for kind, vector in drift.items()}
        return FedDynState({**mean, **moved}, drift=drift)
