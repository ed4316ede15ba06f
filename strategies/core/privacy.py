"""Differential privacy of soft predictions by the Gaussian mechanism.

Covered are the predictions of a client, all P·K numbers of a round at once, against everybody who
reads its messages, including the server. Messages of clients with any two private data sets are
(epsilon, delta)-indistinguishable. This is local differential privacy at the level of clients, over
all rounds in which the client released predictions.

Not covered are the number of training samples, the name of the model, and what an evaluation
reports: counts of correct predictions and mean losses on test and validation data, and the further
``measures``. Training losses and cluster assignments are not sent when noise is on. The analysis
holds for real numbers; floating-point noise is an approximation.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from numpy.typing import NDArray

from strategies.core.flower import root_log_as_it_is
from strategies.core.probabilities import check_simplex, project_onto_simplex

NormalDraws = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""Returns standard normal numbers of a shape."""

RANDOM_BITS = 53
"""Bits of a uniform random number, the precision of float64."""


def secret_normal(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw standard normal numbers from the operating system's generator.

    Each number is the normal quantile of an independent uniform one, so that no number tells
    anything about the others, unlike those of a generator with a state.

    Parameters
    ----------
    shape : tuple of int
        Shape of the result.
    """
    from scipy.special import ndtri  # deferred: few clients add noise

    quantiles: NDArray[np.float64] = ndtri(secret_uniform(shape))
    return quantiles


def secret_uniform(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw independent uniform numbers in (0, 1) from the operating system's generator."""
    drawn = np.frombuffer(secrets.token_bytes(8 * prod(shape)), dtype=np.uint64)
    uniform: NDArray[np.float64] = ((drawn >> (64 - RANDOM_BITS)) + 0.5) / 2**RANDOM_BITS
    return uniform.reshape(shape)


def with_finite_rows(predictions: NDArray[Any]) -> NDArray[Any]:
    """Return predictions with uniform rows in place of those that hold NaN or infinity.

    The norm of an array with such a row is no number, and clipping by it would have no effect.

    Parameters
    ----------
    predictions : ndarray
        Shape (P, K).
    """
    is_finite = np.isfinite(predictions).all(axis=1, keepdims=True)
    return np.where(is_finite, predictions, predictions.dtype.type(1 / predictions.shape[1]))


def clip_towards_uniform(predictions: NDArray[Any], clip_norm: float) -> NDArray[Any]:
    """Shrink predictions towards uniform ones to a distance of at most `clip_norm`.

    Parameters
    ----------
    predictions : ndarray
        Shape (P, K), rows on the simplex. Rows that are not finite become uniform.
    clip_norm : float
        Largest L2 norm of the difference from 1/K, over all entries.

    Returns
    -------
    ndarray
        Shape (P, K), rows on the simplex.
    """
    uniform = 1 / predictions.shape[1]
    deviation = with_finite_rows(predictions) - uniform
    norm = float(np.linalg.norm(deviation))
    return uniform + deviation * min(1.0, clip_norm / max(norm, 1e-12))


def noised_predictions(
    predictions: NDArray[Any],
    clip_norm: float,
    noise_multiplier: float,
    draw: NormalDraws = secret_normal,
) -> NDArray[np.float32]:
    """Clip predictions, add Gaussian noise, and project the rows onto the simplex.

    Two clipped arrays differ by at most ``2 * clip_norm``, which is the sensitivity. Processing
    after the noise costs no further privacy.

    Parameters
    ----------
    predictions : ndarray
        Shape (P, K), rows on the simplex. Rows that are not finite become uniform.
    clip_norm : float
        See `clip_towards_uniform`.
    noise_multiplier : float
        Standard deviation of the noise as a multiple of the sensitivity.
    draw : callable, optional
        Draws the noise. Draws that somebody else can repeat protect nothing.

    Returns
    -------
    ndarray
        Shape (P, K) float32, rows on the simplex.

    Raises
    ------
    NotOnSimplexError
        If the predictions are not probabilities, which the noise would hide.
    """
    # In single precision, rounding would exceed small norms and with them the sensitivity.
    predictions = with_finite_rows(predictions.astype(np.float64))
    check_simplex(predictions, "predictions")
    clipped = clip_towards_uniform(predictions, clip_norm)
    scale = noise_multiplier * 2 * clip_norm
    noised = clipped + scale * draw(predictions.shape)
    return project_onto_simplex(noised, np.ones(len(noised))).astype(np.float32)


@lru_cache(maxsize=1)
def privacy_spent(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return the epsilon spent by a client, by Flower's Rényi accountant.

    No amplification by sampling is claimed, since client and server know when the client takes
    part.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise divided by the sensitivity, above 0.
    releases : int
        How often the client released predictions.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        Epsilon; 0 before the first release.
    """
    return epsilon_of({noise_multiplier: releases}, delta)


def epsilon_of(releases: Mapping[float, int], delta: float) -> float:
    """Return the epsilon of releases with different noise together, by Flower's Rényi accountant.

    Parameters
    ----------
    releases : mapping of float to int
        Number of releases with each noise multiplier.
    delta : float
        In (0, 1).
    """
    if not any(releases.values()):
        return 0.0
    # Deferred: this import takes seconds.
    from flwr.serverapp import RdpAccountant

    config = PrivacyConfig(
        target_delta=delta,
        population_size=1,
        # The event is one Gaussian release of a client. The sensitivity accounts for neighbors
        # with other data instead of absent ones.
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    with root_log_as_it_is():
        accountant: Any = RdpAccountant(config)
        for noise_multiplier, count in releases.items():
            if count:
                accountant.compose(GaussianPrivacyEvent(noise_multiplier, 1, 1), count)
        return float(accountant.get_epsilon(delta))
