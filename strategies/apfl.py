"""APFL: FedAvg, and on each client a personal model that is mixed with the global one.

A client holds a copy w of the global model and a private model v. It uses the mixture
``m = alpha v + (1 - alpha) w``. On each batch w takes a step along its own gradient ``∇f(w)``, and
v one along ``alpha ∇f(m)``, the gradient of the mixture's loss in v (Algorithm 1). The server
averages the w as in FedAvg. An adaptive alpha takes steps along ``<v - w, ∇f(m)>``, the gradient in
alpha.

Differences from the paper
--------------------------
- alpha takes one step in each round, before the weights, on the first batch of the round and with
  its learning rate, and is clipped to [0, 1]. The networks are in evaluation mode for this step.
- A client is evaluated with the mixture of its v and the new global model. In the paper the
  mixture contains the client's own w until the next exchange.
- v starts from the client's initial weights: those of the first global model, or a draw of its own
  with ``initial-weights = "own"``. Before its first training, a client uses the mixture of both.
- Momentum of v is kept. That of w starts anew in each round, since w is replaced.
- Models are weighted by their training samples in the average.
- Batch-normalization statistics of the mixture are measured when it is trained, and stay on the
  client. Those of w are averaged.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.plan import Settings
from strategies.core.replies import Metric
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.parameters import ParameterStrategy


class APFLSettings(Settings):
    """Settings of APFL."""

    table = "apfl"
    alpha: Annotated[float, SearchRange(0.1, 0.9), ANY_ON_NODES] = Field(default=0.5, ge=0, le=1)
    """alpha of the first round, the share of the private model in the mixture; constantly 0 is
    FedAvg, and constantly 1 is `local`."""
    adaptive: Annotated[bool, ANY_ON_NODES] = True
    """Whether each client learns its alpha."""


class APFL(ParameterStrategy):
    """FedAvg's server; private models and mixtures stay on the clients."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="Y. Deng, M. M. Kamani, M. Mahdavi",
            title="Adaptive Personalized Federated Learning",
            year=2020,
            arxiv="2003.13461",
        ),
        settings_type=APFLSettings,
        evaluates=("global",),
        train_metrics=(TRAIN_LOSS, Metric("alpha", low=0, high=1)),
    )
