"""Which clients a method harms, beyond the noise of small test splits.

Run directories hold how many test images a model gets right, not which. Both models of a client
answer the same images, so the test is McNemar's. It needs the images on which the two differ: at
most as many as the counts allow. With that many its p value is largest, so a harm that is shown
here would be shown with the answers too. Some that is there is not shown.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fedkd_flwr.analysis.significance import CONFIDENCE

FALSE_DISCOVERIES = 0.05
"""Expected share of false discoveries among the clients that are called harmed."""

MATTERS = 0.01
"""Loss, part of 1, from which on the estimate calls a client harmed."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Harm:
    """Harm of a method to its clients, beyond the noise of their test splits.

    Attributes
    ----------
    shown : float
        Share of clients shown to be harmed.
    estimate : float
        Estimated share of clients that truly lose `MATTERS` or more.
    low, high : float
        Interval of the largest loss, mean over seeds.
    """

    shown: float = math.nan
    estimate: float = math.nan
    low: float = math.nan
    high: float = math.nan


def harm_of(clients: pd.DataFrame) -> Harm:
    """Return the harm of a method to its clients.

    Parameters
    ----------
    clients : DataFrame
        One method's rows of `fedkd_flwr.analysis.results.client_results`. Clients without counts
        are left out.
    """
    rows = clients.dropna(subset=["gain", "test_images", "local_test_images"])
    # Other counts are those of other images, which cannot be paired.
    rows = rows[rows["test_images"] == rows["local_test_images"]]
    if rows.empty:
        return Harm()
    images = rows["test_images"].to_numpy(float)
    right = np.round(rows["accuracy"].to_numpy(float) * images)
    before = np.round(rows["local_accuracy"].to_numpy(float) * images)
    shown = shown_by_false_discovery_rate(mcnemar_at_most_differing(right, before, images))
    low, high = worst_loss_interval(rows["seed"], right, before, images)
    return Harm(
        shown=float(shown.mean()),
        estimate=estimated_share(right, before, images),
        low=low,
        high=high,
    )


def mcnemar(lost: Numbers, won: Numbers) -> Numbers:
    """Return McNemar's exact p value, one-sided, that more answers are lost than won.

    Parameters
    ----------
    lost, won : array
        Images that only the reference gets right, and those that only the method does.
    """
    p_values: Numbers = stats.binom.sf(lost - 1, lost + won, 0.5)
    return p_values


def mcnemar_at_most_differing(right: Numbers, before: Numbers, images: Numbers) -> Numbers:
    """Return McNemar's p values where the models differ on as many images as counts allow.

    Parameters
    ----------
    right, before : array
        Answers that the method and the reference get right.
    images : array
        Test images of each client.
    """
    lost = np.minimum(before, images - right)
    return mcnemar(lost, lost + right - before)


def shown_by_false_discovery_rate(p_values: Numbers) -> NDArray[np.bool_]:
    """Return which clients are harmed, by Benjamini and Hochberg at `FALSE_DISCOVERIES`."""
    adjusted = stats.false_discovery_control(p_values, method="bh")
    return np.asarray(adjusted <= FALSE_DISCOVERIES)


def estimated_share(right: Numbers, before: Numbers, images: Numbers) -> float:
    """Return the estimated share of clients that truly lose `MATTERS` or more.

    True gains are taken to be normal over clients, with the mean and the variance of a
    random-effects model (DerSimonian and Laird). The noise of a client is that of two independent
    models; as their answers are alike, it is less in truth, and the share may be larger.
    """
    if len(images) < 2:
        return math.nan
    from statsmodels.stats.meta_analysis import combine_effects  # deferred: slow to load

    # Half an answer more on either side, so that no client is without noise.
    ours, theirs = ((count + 0.5) / (images + 1) for count in (right, before))
    noise = (ours * (1 - ours) + theirs * (1 - theirs)) / images
    # A statistic beside the two that are read divides by zero where all gains are equal.
    with np.errstate(divide="ignore", invalid="ignore"):
        found = combine_effects((right - before) / images, noise, method_re="dl")
    mean, variance = float(found.mean_effect_re), max(0.0, float(found.tau2))
    if variance == 0:
        return float(mean <= -MATTERS)
    return float(stats.norm.cdf((-MATTERS - mean) / math.sqrt(variance)))


def worst_loss_interval(
    seeds: Iterable[int], right: Numbers, before: Numbers, images: Numbers
) -> tuple[float, float]:
    """Return the interval of the largest loss of a seed, mean over seeds.

    Newcombe's interval of each client's loss at a level that holds for all clients of a seed at
    once (Bonferroni): the client that loses most was not chosen beforehand.
    """
    from statsmodels.stats.proportion import confint_proportions_2indep  # deferred: slow to load

    seed_of = np.asarray(list(seeds))
    bounds = []
    for seed in np.unique(seed_of):
        own = seed_of == seed
        low, high = confint_proportions_2indep(
            before[own], images[own], right[own], images[own],
            compare="diff", method="newcomb", alpha=(1 - CONFIDENCE) / own.sum(),
        )  # fmt: skip
        bounds.append((np.max(low), np.max(high)))
    low, high = np.mean(bounds, axis=0)
    return float(max(0.0, low)), float(max(0.0, high))


def precision_of(clients: pd.DataFrame) -> tuple[float, float]:
    """Return the median test size, and half the width of a client's interval at that size.

    Parameters
    ----------
    clients : DataFrame
        Of `fedkd_flwr.analysis.results.client_results`.

    Returns
    -------
    tuple of float
        Images, and part of 1 at the mean accuracy; both NaN without counts.
    """
    from statsmodels.stats.proportion import proportion_confint  # deferred: slow to load

    rows = clients.dropna(subset=["accuracy", "test_images"])
    if rows.empty:
        return math.nan, math.nan
    images = float(rows["test_images"].median())
    right = round(images * float(rows["accuracy"].mean()))
    low, high = proportion_confint(right, images, alpha=1 - CONFIDENCE, method="wilson")
    return images, float(high - low) / 2
