"""Ditto: FedAvg, and beside it a personal model that is held near the global one.

Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith, *Ditto: Fair and Robust Federated Learning
Through Personalization*, ICML 2021, arXiv:2012.04221.

A sampled client trains the global model w as in FedAvg, and its own model v, which never leaves
it, on ``F_n(v) + lambda / 2 * ||v - w||²`` with the w that it was sent (Algorithm 1). v is
evaluated; the accuracy of w is reported as ``global-accuracy``.

Differences from the paper
--------------------------
- v is trained for as many epochs or iterations as w, on the same batches, with the run's
  optimizer; its momentum starts anew in each round.
- v starts at the first global model that its client is sent, and a client that was never
  sampled is evaluated with the global model.
- lambda is one number for the run; the paper also lets each client choose it on validation data.
- Models are averaged by training samples.
"""

from pydantic import Field

from strategies.core.metrics import GLOBAL_ACCURACY, TRAIN_LOSS
from strategies.core.plan import Settings
from strategies.core.replies import Metric
from strategies.parameters import ParameterStrategy


class DittoSettings(Settings):
    """Settings of Ditto.

    Attributes
    ----------
    personalization_weight : float
        lambda, the weight of the squared distance between personal and global model; 0 trains
        the personal models independently.
    """

    table = "ditto"
    personalization_weight: float = Field(default=1.0, ge=0)


class Ditto(ParameterStrategy):
    """FedAvg's server; the clients keep their personal models."""

    settings_type = DittoSettings
    train_metrics = (TRAIN_LOSS, Metric("personal-loss"))
    evaluation_metrics = (GLOBAL_ACCURACY,)
