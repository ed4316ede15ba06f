"""FedALA: each client mixes the received model with its own, element by element, before training.

A client receives the global model G and has its own model L of its last training. Its last p
layers start the round as ``L + W * (G - L)`` with a weight W in [0, 1] for each number, and the
layers below as G. W is 1 at first. On a random share of its samples the client takes steps

    W <- clip(W - eta * gradient * (G - L), 0, 1),

with the gradient of the loss at the mixture: until the loss has converged in the second round, and
one epoch in each later one. It then trains and sends the model (Algorithm 1). The server averages.

Differences from the paper
--------------------------
- The samples for W are drawn anew in each round, in one order for all epochs, and the last smaller
  batch is used too. The authors' code takes a block of successive samples and drops that batch.
- Convergence is that of the authors' code: the standard deviation of the last ten epochs' losses is
  below a threshold. The loss of an epoch is that of its last batch. At most 100 epochs are run.
- Layers are counted with batch normalization. Its running statistics are the received ones.
- W is learned in evaluation mode, which the paper does not specify.
- A client is evaluated as in the authors' code, after mixing and before local training. W that was
  learned for an evaluation is not kept, and is learned anew at the start of the next round.
- A client that was not sampled does not learn W in the round, except for its evaluation. In the
  authors' code all clients mix in each round.
- Momentum starts anew in each round, since the model is replaced.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from strategies.core.declarations import Data
from strategies.core.method_record import Paper
from strategies.core.metrics import GRADIENT_STEPS, TRAIN_LOSS
from strategies.core.plan import Settings
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class FedALASettings(Settings):
    """Settings of FedALA."""

    table = "fedala"
    mixed_layers: Annotated[int, ANY_ON_NODES] = Field(default=1, ge=0)
    """p, the number of layers that are mixed, counted from the output; with 0 no layer is mixed."""
    sample_share: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.8, gt=0, le=1)
    """s, the share of the training samples on which W is learned."""
    rate: Annotated[float, SearchRange(0.1, 10.0, log=True), OnNodes(0, 1)] = Field(
        default=1.0, gt=0
    )
    """eta, the step size of W."""
    threshold: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.1, gt=0)
    """Standard deviation of the last ten losses at which W has converged."""


class FedALA(ParameterStrategy):
    """FedAvg's server; clients mix."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan",
            title="FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
            venue="AAAI",
            year=2023,
            arxiv="2212.01197",
        ),
        settings_type=FedALASettings,
        # The first mixture takes steps until the losses on training samples settle.
        train_metrics=(TRAIN_LOSS, replace(GRADIENT_STEPS, inputs=(Data.TRAINING,))),
    )
