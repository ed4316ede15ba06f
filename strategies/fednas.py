"""FedNAS: clients search one architecture, and the server averages weights and architecture.

Clients train one DARTS supernet with network weights w and architecture weights alpha. They search
by MiLeNAS (C. He, H. Ye, L. Shen, T. Zhang, CVPR 2020, arXiv:2003.12238). With a training batch and
a batch of held-out samples, a local step is

    alpha <- alpha - eta_alpha ∇_alpha (L_val(w, alpha) + lambda L_tr(w, alpha)),
    w     <- w - eta_w ∇_w L_tr(w, alpha).

The server averages w and alpha, weighted by samples (Algorithm 1).

Differences from the paper
--------------------------
- The held-out samples are a share of the client's training samples (``fednas.alpha-share``), the
  same in all rounds. The released code takes the client's test samples.
- A client's weight in the mean is the number of all of its training samples, the held-out ones
  among them.
- Step, weight decay and optimizer of w are those of the run. The released code lowers the step of w
  by a cosine over the local epochs, anew in each round.
- Gradients are not clipped. The released code clips only those of alpha, after their step.
- Adam, the optimizer of alpha, starts anew in each round, as in the released code.
- Statistics of batch normalization are averaged like w. They are re-estimated from a client's
  training samples before it replies and before it is evaluated, as in all searches here.
- Accuracy is that of the supernet. The paper also derives a network from alpha and trains it anew:
  ``fedkd genotypes`` reads it from a run.
- A network without architecture weights is trained on all samples, which is FedAvg.
- A new client is not trained. It is evaluated with the global supernet.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from strategies.core.declarations import ALPHAS
from strategies.core.method_record import Paper
from strategies.core.settings_groups import ANY_ON_NODES, DEFAULT_ON_NODES, OnNodes, SearchRange
from strategies.method import Results
from strategies.parameters import ParameterStrategy
from strategies.supernets import SearchSettings


class FedNASSettings(SearchSettings):
    """Settings of the search by MiLeNAS, with the defaults of the released code."""

    table = "fednas"
    alpha_optimizer: Annotated[Literal["sgd", "adam"], ANY_ON_NODES] = "adam"
    alpha_learning_rate: Annotated[float, SearchRange(1e-4, 0.03, log=True), OnNodes(0, 1)] = Field(
        default=3e-4, gt=0
    )
    alpha_weight_decay: Annotated[float, OnNodes(0, 0.1)] = Field(default=1e-3, ge=0)
    alpha_share: Annotated[float, DEFAULT_ON_NODES] = Field(default=0.5, ge=0, lt=1)
    training_weight: Annotated[float, SearchRange(0.1, 10.0, log=True), OnNodes(0, 10)] = Field(
        default=1.0, ge=0
    )
    """lambda, the weight of the training loss beside the held-out loss in the steps on alpha; 0 is
    first-order DARTS."""


class FedNAS(ParameterStrategy):
    """FedAvg's server for a supernet; the architecture weights are averaged too."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="C. He, M. Annavaram, S. Avestimehr",
            title="FedNAS: Federated Deep Learning via Neural Architecture Search",
            year=2020,
            arxiv="2004.08546",
        ),
        settings_type=FedNASSettings,
        trains_new_clients=False,
    )

    def results(self) -> Results:
        """Return the global ``alphas`` for every client, (N, a)."""
        model, size = self.state.model, self.plan.num_clients
        alphas = {kind: np.tile(v, (size, 1)) for kind, v in model.items() if kind == ALPHAS}
        return Results(matrices=alphas)
