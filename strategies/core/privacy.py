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
from typing import Any, NamedTuple

import numpy as np
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from numpy.typing import NDArray

from strategies.core.flower import root_log_as_it_is
from strategies.core.probabilities import check_simplex, project_onto_simplex
from strategies.core.randomness import random_generator

NormalDraws = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""Returns standard normal numbers of a shape."""

UniformDraws = Callable[[tuple[int, ...]], NDArray[np.float64]]
"""Returns uniform numbers in [0, 1) of a shape."""

RANDOM_BITS = 52
"""Bits of a uniform random number: with half a unit added, all are exact in float64."""


def secret_normal(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw standard normal numbers of a shape from the operating system's generator.

    Each is the normal quantile of an independent uniform one, so that none tells about the others.
    That has further bits near 0 and 1. Else large numbers would be so far apart that their sum with
    another number tells the latter.
    """
    from scipy.special import ndtri  # deferred: few clients add noise

    coarse, further = secret_uniform((2, *shape))
    lower = np.minimum(coarse, 1 - coarse) + (further - 0.5) / 2**RANDOM_BITS
    return np.copysign(ndtri(lower), coarse - 0.5)


def secret_uniform(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw independent uniform numbers in (0, 1) from the operating system's generator."""
    drawn = np.frombuffer(secrets.token_bytes(8 * prod(shape)), dtype=np.uint64)
    uniform: NDArray[np.float64] = ((drawn >> (64 - RANDOM_BITS)) + 0.5) / 2**RANDOM_BITS
    return uniform.reshape(shape)


class Draws(NamedTuple):
    """What draws noise."""

    normal: NormalDraws
    uniform: UniformDraws


def noise_draws(seed: int, purpose: str, *indices: int) -> Draws:
    """Return what draws noise: secret for a seed below 0, else what the seed makes repeatable."""
    if seed < 0:
        return Draws(secret_normal, secret_uniform)
    generator = random_generator(seed, purpose, *indices)
    return Draws(generator.standard_normal, generator.random)


def with_finite_rows(predictions: NDArray[Any]) -> NDArray[Any]:
    """Return predictions (P, K) with uniform rows instead of those that hold NaN or infinity.

    The norm of an array with such a row is no number, and clipping by it would have no effect.
    """
    is_finite = np.isfinite(predictions).all(axis=1, keepdims=True)
    return np.where(is_finite, predictions, predictions.dtype.type(1 / predictions.shape[1]))


def clip_towards_uniform(predictions: NDArray[Any], clip_norm: float) -> NDArray[Any]:
    """Shrink predictions (P, K) towards 1/K to an L2 distance of at most `clip_norm`.

    Rows stay on the simplex; those that are not finite become uniform.
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
    """Clip predictions (P, K), add Gaussian noise, and project the rows onto the simplex.

    Two clipped arrays differ by at most ``2 * clip_norm``, the sensitivity; the noise's deviation
    is `noise_multiplier` times that. Draws that somebody else can repeat protect nothing.
    Predictions that are not probabilities are refused, since the noise would hide it.
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
    """Return the epsilon that a client has spent by some releases, by Flower's Rényi accountant.

    No amplification by sampling is claimed: client and server know when the client takes part.
    """
    return epsilon_of({noise_multiplier: releases}, delta)


def epsilon_of(releases: Mapping[float, int], delta: float) -> float:
    """Return the epsilon of releases, by their noise multipliers, at a delta."""
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
