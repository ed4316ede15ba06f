"""Gaussian noise on soft predictions, and the privacy that it costs.

What is covered: one client's predictions, all its P·K numbers of a round at once, against
everybody who reads its messages, the server included. Whatever private data the client holds,
its messages are (epsilon, delta)-indistinguishable from those of a client with any other data:
local differential privacy of a whole client, over all rounds in which it released predictions.

What is not covered: the number of its training samples, the model's name, and what it reports
when it is evaluated, which all leave it as they are: counts of correct answers and mean losses on
test and validation data, and what ``measures`` asks for. Its training losses, and the cluster it
chose, stay with it while there is noise. The analysis is for real numbers; floating-point noise is
only close to them.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from numpy.typing import NDArray

from strategies.core.simplex import check_simplex, project_onto_simplex


def clip_towards_uniform(predictions: NDArray[Any], clip_norm: float) -> NDArray[Any]:
    """Shrink predictions towards uniform ones until they are no farther than `clip_norm`.

    Parameters
    ----------
    predictions : ndarray
        Shape (P, K), rows on the simplex.
    clip_norm : float
        Largest L2 norm of the difference from 1/K, over all entries.

    Returns
    -------
    ndarray
        Shape (P, K), rows on the simplex.
    """
    uniform = 1 / predictions.shape[1]
    deviation = predictions - uniform
    norm = float(np.linalg.norm(deviation))
    return uniform + deviation * min(1.0, clip_norm / max(norm, 1e-12))


def noised_predictions(
    predictions: NDArray[Any],
    clip_norm: float,
    noise_multiplier: float,
    generator: np.random.Generator,
) -> NDArray[np.float32]:
    """Clip predictions, add Gaussian noise, and bring the rows back to the simplex.

    Two clipped arrays are at most ``2 * clip_norm`` apart, which is the sensitivity. What
    happens after the noise reads nothing private and costs nothing.

    Parameters
    ----------
    predictions : ndarray
        Shape (P, K), rows on the simplex.
    clip_norm : float
        See `clip_towards_uniform`.
    noise_multiplier : float
        Standard deviation of the noise as a multiple of the sensitivity.
    generator : numpy.random.Generator
        Draws the noise; for real privacy, from a seed that nobody else knows.

    Returns
    -------
    ndarray
        Shape (P, K) float32, rows on the simplex.

    Raises
    ------
    NotOnSimplexError
        If the predictions are not probabilities: after the noise nobody could tell.
    """
    check_simplex(predictions, "predictions")
    clipped = clip_towards_uniform(predictions, clip_norm)
    scale = noise_multiplier * 2 * clip_norm
    noised = clipped + generator.normal(0.0, scale, predictions.shape)
    return project_onto_simplex(noised, np.ones(len(noised))).astype(np.float32)


@lru_cache(maxsize=1)
def privacy_spent(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return the epsilon of a client's releases, by Flower's Rényi accountant.

    No amplification by sampling is claimed: a client knows when it takes part, and so does
    the server.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity, above 0.
    releases : int
        How often the client released predictions.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        Epsilon; 0 before the first release.
    """
    if releases == 0:
        return 0.0
    # Its import takes seconds, and runs without noise have no use for it.
    from flwr.serverapp import RdpAccountant

    config = PrivacyConfig(
        target_delta=delta,
        population_size=1,
        # The event is one client's own Gaussian release; that its neighbours are clients with
        # other data rather than absent ones is in the sensitivity.
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    accountant: Any = RdpAccountant(config)
    accountant.compose(GaussianPrivacyEvent(noise_multiplier, 1, 1), releases)
    return float(accountant.get_epsilon(delta))
