"""Which clients a method harms, beyond the noise of small test splits.

Both models of a client answer the same images, so the test is McNemar's. It needs the images that
only one of the two gets right, which runs record with ``record-answers``. Of other runs only counts
are known. The test is then taken with as many such images as the counts allow, where its p value is
largest: a harm that is shown would be shown with the answers too, but some is missed.
"""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fedkd_flwr.analysis.significance import CONFIDENCE
from fedkd_flwr.runs import Run
from strategies.core.safeguard import SAFEGUARD_COLUMNS

FALSE_DISCOVERIES = 0.05
"""Expected share of false discoveries among the clients that are called harmed."""

MATTERS = 0.01
"""Loss, part of 1, from which on the estimate calls a client harmed."""

Numbers = NDArray[np.float64]


HARM = ("harmed_shown", "harmed_estimate", "worst_loss_low", "worst_loss_high")
"""Columns of the harm of a method, beyond the noise of its clients' test splits: the shares of the
clients that are shown to be harmed, and that are estimated to lose `MATTERS` or more; the interval
of the largest loss, mean over seeds."""


def harm_of(clients: pd.DataFrame) -> dict[str, float]:
    """Return the `HARM` of a method to its clients; NaN if none of them has counts."""
    rows = clients.dropna(subset=["gain", "test_images", "local_test_images"])
    # Other counts are those of other images, which cannot be paired.
    rows = rows[rows["test_images"] == rows["local_test_images"]]
    if rows.empty:
        return dict.fromkeys(HARM, math.nan)
    images = rows["test_images"].to_numpy(float)
    right = np.round(rows["accuracy"].to_numpy(float) * images)
    before = np.round(rows["local_accuracy"].to_numpy(float) * images)
    lost, won = (rows[name].to_numpy(float) for name in ("lost", "won"))
    p_values = np.where(
        np.isnan(lost), mcnemar_at_most_differing(right, before, images), mcnemar(lost, won)
    )
    shown = shown_by_false_discovery_rate(p_values)
    noise = np.where(
        np.isnan(lost),
        noise_of_independent(right, before, images),
        noise_of_paired(lost, won, images),
    )
    estimate = estimated_share((right - before) / images, noise)
    interval = worst_loss_interval(rows["seed"], right, before, images)
    return dict(zip(HARM, (float(shown.mean()), estimate, *interval), strict=True))


def mcnemar(lost: Numbers, won: Numbers) -> Numbers:
    """Return McNemar's exact p value, one-sided, that more answers are lost than won.

    Lost are the images that only the reference gets right, won those that only the method does.
    """
    p_values: Numbers = stats.binom.sf(lost - 1, lost + won, 0.5)
    return p_values


def mcnemar_at_most_differing(right: Numbers, before: Numbers, images: Numbers) -> Numbers:
    """Return McNemar's p values where the models differ on as many images as counts allow.

    `right` and `before` are the answers that the method and the reference get right.
    """
    lost = np.minimum(before, images - right)
    return mcnemar(lost, lost + right - before)


def shown_by_false_discovery_rate(p_values: Numbers) -> NDArray[np.bool_]:
    """Return which clients are harmed, by Benjamini and Hochberg at `FALSE_DISCOVERIES`."""
    adjusted = stats.false_discovery_control(p_values, method="bh")
    return np.asarray(adjusted <= FALSE_DISCOVERIES)


def noise_of_independent(right: Numbers, before: Numbers, images: Numbers) -> Numbers:
    """Return the variance of each client's gain, as if its two models answered other images.

    It is more than that of two models on the same images, whose answers are alike. Half an answer
    is added on either side, so that no client is without noise. `right` and `before` are the
    answers that the method and the reference get right.
    """
    ours, theirs = ((count + 0.5) / (images + 1) for count in (right, before))
    noise: Numbers = (ours * (1 - ours) + theirs * (1 - theirs)) / images
    return noise


def noise_of_paired(lost: Numbers, won: Numbers, images: Numbers) -> Numbers:
    """Return the variance of each client's gain between two models on the same images.

    An image counts -1, 0 or 1, so the variance is that of a mean of such numbers. Half an answer
    is added on either side, so that no client is without noise.
    """
    down, up = ((count + 0.5) / (images + 1) for count in (lost, won))
    noise: Numbers = (up + down - (up - down) ** 2) / images
    return noise


def estimated_share(gains: Numbers, noise: Numbers) -> float:
    """Return the estimated share of clients that truly lose `MATTERS` or more.

    True gains are taken to be normal over clients, with the mean and the variance of a
    random-effects model (DerSimonian and Laird). The share is the probability that a further client
    loses that much, with Student's t of k - 2 degrees of freedom for k clients (J. Higgins, S.
    Thompson, D. Spiegelhalter, *A re-evaluation of random-effects meta-analysis*, 2009). It
    includes the error of the mean. So a variance that is estimated as 0 does not make it all or
    nothing near the threshold. NaN for fewer than three clients. The noise is the variance of each
    gain.
    """
    if len(gains) < 3:
        return math.nan
    from statsmodels.stats.meta_analysis import combine_effects  # deferred: slow to load

    # A statistic beside those that are read divides by zero where all gains are equal.
    with np.errstate(divide="ignore", invalid="ignore"):
        found = combine_effects(gains, noise, method_re="dl")
    between = max(0.0, float(found.tau2))
    # Weights with a variance between clients that is not negative; statsmodels keeps its sign.
    weights = 1 / (noise + between)
    mean, error = float(np.average(gains, weights=weights)), 1 / float(weights.sum())
    spread = math.sqrt(between + error)
    return float(stats.t.cdf((-MATTERS - mean) / spread, len(gains) - 2))


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


LOST_AND_WON = ("safeguarded_lost", "safeguarded_won", "method_lost", "method_won")
"""Test images that only one of two gets right: the private model, or what it is compared with."""

OF_CLIENTS = (*SAFEGUARD_COLUMNS, *LOST_AND_WON)
"""Columns of `safeguarded`."""

SHOWN = "safeguarded_harmed"
"""Share of clients that are shown to be worse with the safeguard than with their private model."""


def safeguarded(run: Run) -> pd.DataFrame:
    """Return what the safeguard of a run gave each client at the last evaluation.

    By partition-id, the columns `OF_CLIENTS`: accuracies, the weight of the method's model, and the
    images that only the private model gets right, or only what it is compared with: the deployed
    prediction, and the method's model alone. No columns for a run without.
    """
    rows = run.last_evaluations
    if SAFEGUARD_COLUMNS[0] not in rows:
        return pd.DataFrame(index=rows.index)
    found = rows.reindex(columns=[*SAFEGUARD_COLUMNS, "safeguarded_lost", "method_lost"])
    for name, right in (("safeguarded", "safeguarded_correct"), ("method", "correct")):
        found[f"{name}_won"] = rows[right] - rows["private_correct"] + found[f"{name}_lost"]
    return found[list(OF_CLIENTS)]


def harmed(clients: pd.DataFrame) -> pd.Series:
    """Return which clients are shown to be worse with a safeguard than with their private model.

    McNemar's exact test for each client, as in `fedkd_flwr.analysis.harm`. Clients without counts
    are left out.
    """
    counts = clients[["safeguarded_lost", "safeguarded_won"]].dropna()
    if counts.empty:
        return pd.Series(dtype=bool)
    lost, won = counts.to_numpy(float).T
    return pd.Series(shown_by_false_discovery_rate(mcnemar(lost, won)), index=counts.index)


def with_safeguards(table: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with the share of `harmed` clients, if any run has a safeguard."""
    if "safeguarded_lost" not in clients:
        return table
    shares = {label: harmed(clients[clients["method"] == label]).mean() for label in table.index}
    return table.join(pd.Series(shares, name=SHOWN, dtype=float))
