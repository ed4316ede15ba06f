"""FedProx: FedAvg with a proximal term on the clients.

A sampled client n minimizes ``h(w) = F_n(w) + mu / 2 * ||w - w_g||²`` from the global model w_g
that it received (Algorithm 2); the server averages the replies.

Differences from the paper
--------------------------
- Clients are sampled uniformly and models are weighted by training samples, as in the paper's
  experiments. Algorithm 2 samples by training samples and averages uniformly.
- Every client does the same number of epochs or iterations. Stragglers, which stop earlier with a
  less exact solution, are not simulated.
- mu is constant. The paper tunes it over 0.001, 0.01, 0.1 and 1 for each data set,
  and tries a heuristic that changes it with the loss (appendix C.3.3).
"""

from typing import Annotated

from pydantic import Field

from strategies.core.method_record import Paper
from strategies.core.plan import Settings
from strategies.core.settings_groups import OnNodes, SearchRange
from strategies.parameters import ParameterStrategy


class FedProxSettings(Settings):
    """Settings of FedProx."""

    table = "fedprox"
    mu: Annotated[float, SearchRange(0.001, 1.0, log=True), OnNodes(0, 0.1)] = Field(
        default=0.01, ge=0
    )
    """Weight of the proximal term; 0 is FedAvg."""


class FedProx(ParameterStrategy):
    """FedAvg's server; only the clients' loss differs."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith",
            title="Federated Optimization in Heterogeneous Networks",
            venue="MLSys",
            year=2020,
            arxiv="1812.06127",
        ),
        settings_type=FedProxSettings,
        dp_sgd=True,
        trains_new_clients=False,
    )
