"""Ditto: FedAvg plus a personal model that is regularized towards the global model.

A sampled client trains the global model w as in FedAvg. It trains its personal model v, which is
never sent, on ``F_n(v) + lambda / 2 * ||v - w||²`` with the received w (Algorithm 1). v is
evaluated; w is evaluated beside it, as the ``global`` model.

Differences from the paper
--------------------------
- v is trained for as many epochs or iterations as w, on the same batches, with the run's
  optimizer. Its momentum is kept; that of w starts anew in each round.
- v starts from the first global model that the client receives. A client that was never sampled is
  evaluated with the global model.
- lambda is constant and the same for all clients; in the paper a client may also choose it on
  validation data.
- Models are weighted by their training samples in the average.
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.metrics import TRAIN_LOSS
from strategies.core.plan import Settings
from strategies.core.replies import Metric
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class DittoSettings(Settings):
    """Settings of Ditto."""

    table = "ditto"
    personalization_weight: Annotated[float, SearchRange(0.03, 3.0, log=True), OnNodes(0, 10)] = (
        Field(default=1.0, ge=0)
    )
    """lambda, the weight of the squared distance between personal and global model; 0 trains the
    personal models independently."""


class Ditto(ParameterStrategy):
    """FedAvg's server; personal models stay on the clients."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="T. Li, S. Hu, A. Beirami, V. Smith",
            title="Ditto: Fair and Robust Federated Learning Through Personalization",
            venue="ICML",
            year=2021,
            arxiv="2012.04221",
        ),
        settings_type=DittoSettings,
        dp_sgd=True,
        evaluates=("global",),
        train_metrics=(TRAIN_LOSS, Metric("personal-loss", through_model=True)),
    )
