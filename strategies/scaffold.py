"""SCAFFOLD: clients correct their steps by how their gradients differ from everybody's.

Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich,
Ananda Theertha Suresh, *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*,
ICML 2020, arXiv:1910.06378.

The server keeps the control variate c, client n its own c_n, both zero at first. A client's step
from the global model x is ``y <- y - eta (g(y) - c_n + c)``. After K steps it takes
``c_n + (x - y) / (K eta) - c`` for its new control variate (option II), which is its mean
gradient on the way, and replies with y and the change of c_n (Algorithm 1).

Differences from the paper
--------------------------
- Clients weigh by their training samples, as with the other methods here: both in the mean model
  and in c, which is the mean of the clients' c_n. The paper weighs all alike.
- Steps may have momentum. The K steps then count for the distance that they come to,
  ``Σ_k (1 - m^k) / (1 - m)``, so that c_n is a mean gradient all the same; K where m = 0.
- ``scaffold.correction`` is a factor on c - c_n; 1 is the paper, 0 is FedAvg.
- Batch normalization's running statistics have no control variate. They are averaged.
- A client whose reply is lost has moved its c_n, which c then does not show until the next reply.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.plan import Settings
from strategies.core.replies import Arrays, Due, Reply
from strategies.parameters import (
    Model,
    ParameterStrategy,
    mean_model,
    num_parameters,
    step_towards,
)

CONTROL = "control"
"""Name of c on the way down, of the change of c_n on the way up: (parameters,) float32."""


class ScaffoldSettings(Settings):
    """Settings of SCAFFOLD.

    Attributes
    ----------
    server_learning_rate : float
        eta_g, the server's step from the global model towards the mean of the clients' models.
    correction : float
        Factor of the correction ``c - c_n``; 1 in the paper, 0 is FedAvg.
    """

    table = "scaffold"
    server_learning_rate: float = Field(default=1.0, gt=0)
    correction: float = Field(default=1.0, ge=0, le=1)


def counted_steps(steps: int, momentum: float) -> float:
    """Return for how many plain steps some steps with momentum count, ``Σ_k (1 - m^k) / (1 - m)``.

    Gradient k of K is in all later velocities too, so it moves the model by
    ``1 + m + … + m^(K - k)`` step sizes.
    """
    powers = momentum ** np.arange(1, steps + 1)
    return float(((1 - powers) / (1 - momentum)).sum())


def moved_control(
    control: NDArray[Any], changes: list[NDArray[Any]], shares: NDArray[np.float64]
) -> NDArray[Any]:
    """Return ``c + Σ_n p_n Δc_n``: c stays the mean of all c_n when some of them change.

    Parameters
    ----------
    control : ndarray
        c, shape (parameters,).
    changes : list of ndarray
        Δc_n of the repliers, each (parameters,).
    shares : ndarray
        Shape (R,), p_n of the repliers; they sum to less than 1 where clients are missing.
    """
    moved = control.copy()
    for change, share in zip(changes, shares, strict=True):
        moved += control.dtype.type(share) * change
    return moved


class Scaffold(ParameterStrategy):
    """SCAFFOLD's server (Algorithm 1, lines 15 to 17).

    Attributes
    ----------
    control : ndarray
        c, shape (parameters,) float32, the mean of the clients' c_n.
    """

    settings_type = ScaffoldSettings
    trains_new_clients = False
    settings: ScaffoldSettings
    needs_plain_descent = True
    kept = (*ParameterStrategy.kept, CONTROL)
    control: NDArray[np.float32]

    def begin(self, initial: Arrays) -> None:
        """Start from the initial model, and with no correction."""
        super().begin(initial)
        self.control = np.zeros(num_parameters(self.model), dtype=np.float32)

    def extra_parts(self, partition_id: int) -> Arrays:
        """Send c."""
        return {CONTROL: self.control}

    def extra_due(self) -> dict[str, Due]:
        """Ask for the change of c_n."""
        return {CONTROL: Due(self.control.shape)}

    def aggregate(self, server_round: int, replies: dict[int, Reply]) -> None:
        """Move the global model, then c."""
        super().aggregate(server_round, replies)
        shares = self.sizes(replies) / self.sizes(self.trained).sum()
        changes = [reply.arrays[CONTROL] for reply in replies.values()]
        self.control = moved_control(self.control, changes, shares)

    def aggregate_models(self, server_round: int, models: dict[int, Model]) -> None:
        """Step towards the mean of the clients' models."""
        mean = mean_model(list(models.values()), self.sizes(models))
        self.model = step_towards(self.model, mean, self.settings.server_learning_rate)
