"""Whether a mean gain over seeds is more than chance: paired t test, Holm, smallest visible gain.

A seed gives one number: the mean over clients of what a method gains over its reference on the
same split. The test is a paired t test over these numbers. Holm's correction keeps the chance of
any false claim in a table at `LEVEL`, whatever the number of methods. How these choices behave on
methods without any effect is measured in ``docs/explanation/evaluation-protocol.md``.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from scipy import optimize, stats

LEVEL = 0.05
"""Chance of any false claim in a table whose methods have no effect."""

CONFIDENCE = 0.95
"""Confidence level of intervals."""

POWER = 0.8
"""Probability of showing the smallest visible gain."""

FEWEST_SEEDS = 3
"""Fewest seeds for a verdict."""

SMALLEST_DIFFERENCE = 1e-9
"""Smaller differences, as fractions of 1, are rounding."""


Key = TypeVar("Key", bound=Hashable)


class Outcome(StrEnum):
    """Outcome of a comparison, in the order in which tables show them."""

    BETTER = "better"
    NOT_SHOWN = "not shown"
    WORSE = "worse"


@dataclass(frozen=True)
class Effect:
    """The mean gain of a method over a reference, and what it shows. Gains are parts of 1.

    Attributes
    ----------
    seeds : int
        Seeds that both have.
    above, below : int
        Seeds in which the method is above the reference, and below it.
    gain : float
        Mean over seeds.
    low, high : float
        Interval of the mean gain, by Student's t over seeds; NaN below `FEWEST_SEEDS`, and for
        equal gains in all seeds other than zero.
    deviation : float
        Standard deviation of the gain over seeds; NaN where there is no interval.
    p_value : float
        Of the paired t test, two-sided, and of the sign test for equal gains; NaN below
        `FEWEST_SEEDS`.
    p_holm : float
        The same after Holm's correction; `outcome` follows from it.
    family : int
        Tests that Holm's correction is over.
    """

    seeds: int
    above: int
    below: int
    gain: float
    low: float = math.nan
    high: float = math.nan
    deviation: float = math.nan
    p_value: float = math.nan
    p_holm: float = math.nan
    family: int = 0

    @property
    def outcome(self) -> Outcome:
        """Better, worse, or not shown."""
        if not self.p_holm <= LEVEL:
            return Outcome.NOT_SHOWN
        return Outcome.BETTER if self.gain > 0 else Outcome.WORSE

    @property
    def smallest_visible(self) -> float:
        """Smallest true gain that would be shown with a chance of `POWER`; NaN if there is none.

        Of a test at Holm's first step, which is the strictest, for normal gains with the standard
        deviation of these.
        """
        if math.isnan(self.p_value):
            return math.nan
        return smallest_effect(self.seeds, LEVEL / self.family) * self.deviation


def effect_of(gains: Iterable[float]) -> Effect:
    """Return a method's effect by its mean gain in each seed, before Holm's correction."""
    # Differences of equal accuracies are zero up to rounding, and rounding has no spread.
    values = np.round(np.asarray([gain for gain in gains if not math.isnan(gain)]), 12)
    above = int((values > SMALLEST_DIFFERENCE).sum())
    below = int((values < -SMALLEST_DIFFERENCE).sum())
    mean = float(values.mean()) if len(values) else math.nan
    counted = Effect(len(values), above, below, mean)
    if len(values) < FEWEST_SEEDS:
        return counted
    if np.ptp(values) == 0:
        return _without_spread(counted)
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(CONFIDENCE)
    return replace(
        counted,
        low=float(interval.low),
        high=float(interval.high),
        deviation=float(values.std(ddof=1)),
        p_value=float(test.pvalue),
    )


def _without_spread(counted: Effect) -> Effect:
    """Return the effect of equal gains, where t is infinite or undefined."""
    decided = counted.above + counted.below
    if not decided:  # equal models
        return replace(counted, low=0.0, high=0.0, deviation=0.0, p_value=1.0)
    # Few seeds with coarse accuracies can be equal by chance: the sign test, and no interval.
    return replace(counted, p_value=float(stats.binomtest(counted.above, decided).pvalue))


def effects_of(gains: Mapping[Key, Iterable[float]]) -> dict[Key, Effect]:
    """Return the effects of several methods, corrected by Holm's method for their number.

    Those with fewer than `FEWEST_SEEDS` are not tested and do not count.
    """
    effects = {label: effect_of(own) for label, own in gains.items()}
    tested = [label for label, effect in effects.items() if not math.isnan(effect.p_value)]
    corrected = holm([effects[label].p_value for label in tested])
    for label, p_holm in zip(tested, corrected, strict=True):
        effects[label] = replace(effects[label], p_holm=p_holm, family=len(tested))
    return effects


def holm(p_values: list[float]) -> list[float]:
    """Return p values corrected by Holm's step-down method, in their order."""
    # statsmodels' multipletests gives the same, but collects all garbage at each call: 0.4 s
    # once PyTorch is loaded.
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    corrected = np.empty_like(values)
    corrected[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return [float(p) for p in np.minimum(corrected, 1.0)]


def smallest_effect(seeds: int, level: float) -> float:
    """Return the smallest mean, in standard deviations, that a two-sided t test finds.

    `POWER` is the chance to find it. The tail on the other side is left out, as it is next to
    nothing.
    """
    # statsmodels' TTestPower fails at levels like 0.05/31 with three values.
    critical = stats.t.isf(level / 2, seeds - 1)

    def missing(effect: float) -> float:
        return float(stats.nct.sf(critical, seeds - 1, effect * math.sqrt(seeds)) - POWER)

    return float(optimize.brentq(missing, 0.0, 10.0 * critical))
