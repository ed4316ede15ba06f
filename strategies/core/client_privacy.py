"""Differential privacy of whole clients in the mean of their models: clipped and noised updates.

H. Brendan McMahan, Daniel Ramage, Kunal Talwar, Li Zhang, *Learning Differentially Private
Recurrent Language Models*, ICLR 2018, arXiv:1710.06963.

The server clips each client's update to norm C and adds Gaussian noise to the mean. It protects a
client against everybody who receives the global model, such as other clients. It does not protect
against the server, which sees each update.

Differences from the paper
--------------------------
- All clients of a round have equal weights, and the mean is over the replies. Neighbors are a
  client and the same client with any other data, so the sensitivity of the mean of R updates is
  ``2 C / R``.
- No amplification by sampling is claimed: clients know the seed that draws them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.core.privacy import NormalDraws, secret_normal
from strategies.core.settings_groups import SettingsGroup

Model = dict[str, NDArray[Any]]
"""Vectors of a model by kind."""


class ClientPrivacySettings(SettingsGroup):
    """Differential privacy of clients in the global model, towards those who receive it.

    Attributes
    ----------
    noise_multiplier : float
        sigma, the standard deviation of the noise on the mean of updates, as a multiple of its
        sensitivity; 0 for no noise.
    clip_norm : float
        C, the largest norm of a client's update of the model.
    delta : float
        delta of (epsilon, delta)-differential privacy of clients, at which epsilon is reported.
    """

    noise_multiplier: float = Field(default=0.0, ge=0, le=1e4)
    clip_norm: float = Field(default=1.0, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field."""
        return f"client-dp-{super().key_of(name)}"


def noised_mean(
    start: Model,
    models: Sequence[Model],
    clip_norm: float,
    noise_multiplier: float,
    draw: NormalDraws = secret_normal,
) -> Model:
    """Return ``w + (1/R) Σ clip(w_n - w) + N(0, (sigma 2 C / R)²)``.

    Parameters
    ----------
    start : dict of str to ndarray
        w, the model that all R clients received.
    models : sequence of dict
        w_n, the models of the clients.
    clip_norm : float
        C. The norm is that of all vectors of an update together.
    noise_multiplier : float
        sigma.
    draw : callable, optional
        Draws the noise. Draws that somebody else can repeat protect nothing.

    Returns
    -------
    dict of str to ndarray
        The new global model, with the data types of the old one.
    """
    mean = {kind: np.zeros(len(vector)) for kind, vector in start.items()}
    for model in models:
        update = {kind: model[kind].astype(np.float64) - start[kind] for kind in start}
        norm = np.sqrt(sum(np.square(vector).sum() for vector in update.values()))
        share = min(1.0, clip_norm / max(float(norm), 1e-12)) / len(models)
        for kind, vector in update.items():
            mean[kind] += share * vector
    scale = noise_multiplier * 2 * clip_norm / len(models)
    return {
        kind: (start[kind] + step + scale * draw(step.shape)).astype(start[kind].dtype)
        for kind, step in mean.items()
    }
