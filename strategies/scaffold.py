"""SCAFFOLD: control variates correct the drift of the clients' gradients.

The server keeps the control variate c, client n its own c_n, both zero at first. A client's step
from the global model x is ``y <- y - eta (g(y) - c_n + c)``. After K steps it takes
``c_n + (x - y) / (K eta) - c`` for its new control variate (option II), which is its mean
gradient on the way, and replies with y and c_n (Algorithm 1).

Differences from the paper
--------------------------
- Clients are weighted by their training samples, as in the other methods here: both in the mean
  model and in c, the mean of the clients' c_n. The paper weights all clients equally.
- Steps may have momentum. K is then replaced by ``Σ_k (1 - m^k) / (1 - m)``, so that c_n is still a
  mean gradient; with m = 0 this is K.
- ``scaffold.correction`` is a factor of c - c_n; 1 in the paper, 0 is FedAvg.
- Batch-normalization statistics have no control variate and are averaged.
- Clients send c_n, and the server keeps the last one of each. In the paper they send its change,
  and the server adds it to c. A lost reply, a client without its memory, or a wrong change would
  then stay in c for the rest of the run.
- With ``mixing = "median"`` or ``"trimmed-mean"`` c is that average of the c_n received so far,
  times their share of all clients.
- A client that a resumed run goes on without counts in c by its last c_n, with the mean weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.declarations import of_model
from strategies.core.method_record import Need, Paper
from strategies.core.plan import Settings
from strategies.core.replies import Arrays, ExpectedArray, Reply
from strategies.core.settings_groups import ANY_ON_NODES, SearchRange
from strategies.parameters import (
    AVERAGES,
    ParameterState,
    ParameterStrategy,
    num_parameters,
    step_towards,
)

CONTROL = "control"  # name of c in messages, and of c_n in replies: (parameters,) float32


class ScaffoldSettings(Settings):
    """Settings of SCAFFOLD."""

    table = "scaffold"
    server_learning_rate: Annotated[float, SearchRange(0.1, 2.0, log=True), ANY_ON_NODES] = Field(
        default=1.0, gt=0
    )
    """eta_g, the server's step from the global model towards the mean of the clients' models."""
    correction: Annotated[float, ANY_ON_NODES] = Field(default=1.0, ge=0, le=1)
    """Factor of the correction ``c - c_n``; 1 in the paper, 0 is FedAvg."""


def counted_steps(steps: int, momentum: float) -> float:
    """Return the number of equivalent steps without momentum, ``Σ_k (1 - m^k) / (1 - m)``."""
    powers = momentum ** np.arange(1, steps + 1)
    return float(((1 - powers) / (1 - momentum)).sum())


@dataclass(frozen=True)
class ScaffoldState(ParameterState):
    """The global model x and the control variates."""

    control: NDArray[np.float32]
    """c, shape (parameters,) float32, the mean of the clients' c_n."""
    controls: dict[int, NDArray[Any]]
    """c_n by partition-id, each like `control`; a client that has not replied has none. The
    server's memory grows by one such vector per client."""


class Scaffold(ParameterStrategy):
    """SCAFFOLD's server (Algorithm 1, lines 15 to 17)."""

    record = ParameterStrategy.record.derived(
        paper=Paper(
            authors="S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh",
            title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
            venue="ICML",
            year=2020,
            arxiv="1910.06378",
        ),
        exchanged="parameters and control variates",
        needs=(Need.ONE_ARCHITECTURE, Need.PLAIN_DESCENT),
        settings_type=ScaffoldSettings,
        dp_sgd=True,
        trains_new_clients=False,
        sends=(*ParameterStrategy.record.sends, of_model(CONTROL)),
    )
    settings: ScaffoldSettings
    state: ScaffoldState

    def begin(self, initial: Arrays) -> ScaffoldState:
        model = dict(initial)
        return ScaffoldState(model, np.zeros(num_parameters(model), dtype=np.float32), {})

    def extra_parts(self, partition_id: int) -> Arrays:
        return {CONTROL: self.state.control}

    def extra_expected_arrays(self) -> dict[str, ExpectedArray]:
        return {CONTROL: ExpectedArray(self.state.control.shape)}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> ScaffoldState:
        """Step towards the mean of the clients' models, and average all c_n."""
        state, rate = self.state, self.settings.server_learning_rate
        mean = self.average(self.models_in(replies))
        own = {n: reply.arrays[CONTROL] for n, reply in replies.items()}
        controls = {**state.controls, **own}
        return replace(
            state,
            model=step_towards(state.model, mean, rate),
            control=self.mean_control(controls),
            controls=controls,
        )

    def mean_control(self, controls: Mapping[int, NDArray[Any]]) -> NDArray[np.float32]:
        """Return c, the average of all c_n, which are zero for clients that have not replied.

        The zeros could decide a robust average. It is that of the other c_n, times their share.
        """
        weights = dict(zip(self.round.trained, self.weights_of(self.round.trained), strict=True))
        mean_weight = np.mean(list(weights.values()))
        everyone = sorted({*weights, *controls})
        counted = everyone if self.plan.mixing == "mean" else sorted(controls)
        zero = np.zeros_like(self.state.control)
        mean = AVERAGES[self.plan.mixing](
            [{CONTROL: controls.get(n, zero)} for n in counted],
            np.array([weights.get(n, mean_weight) for n in counted]),
        )
        return mean[CONTROL] * np.float32(len(counted) / len(everyone))

    def sent_to(self, reply: Reply) -> Arrays:
        return {**super().sent_to(reply), CONTROL: np.zeros((), dtype=np.float32)}
