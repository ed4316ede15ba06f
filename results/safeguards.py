"""Whether safeguards keep clients from falling behind, over the methods of several comparisons.

There are two sides: the share of clients that are shown to be worse than their private model, and
the share of the mean gain that is kept, over the methods that gain alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedkd_flwr.analysis.harm import harmed
from fedkd_flwr.analysis.significance import CONFIDENCE, FEWEST_SEEDS, effect_of

LOSSES = (2, 5)
"""Points of accuracy; shares of clients that lose more are reported."""

SMALLEST_GAIN = 0.005
"""Mean gain, part of 1, from which on a method counts among those that gain."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval over seeds; NaN below `FEWEST_SEEDS`, or if no seed differs."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Criterion:
    """What safeguards give the clients of several comparisons.

    Attributes
    ----------
    clients : DataFrame
        One row per client and run with a safeguard. Besides the columns of
        `fedkd_flwr.analysis.results.client_results`: ``data``, the comparison; ``label``, the
        method; ``method_gain`` and ``safeguarded_gain`` over the private model; ``harmed``,
        whether it is shown to be worse with the safeguard.
    table : DataFrame
        One row per comparison and method: ``seeds``, ``private_accuracy``, ``safeguard_weight``,
        the gains ``method`` and ``safeguarded`` over the private model with their intervals, and
        the shares ``harmed`` and ``method_loses_2`` and so on, those that lose more than `LOSSES`.
    """

    clients: pd.DataFrame
    table: pd.DataFrame

    @property
    def gaining(self) -> list[tuple[str, str]]:
        """Comparisons and methods that gain at least `SMALLEST_GAIN` alone."""
        return list(self.table.index[self.table["method"] >= SMALLEST_GAIN])

    def harmed(self) -> Estimate:
        """Return the share of clients that are shown to be worse with a safeguard."""
        return _over_seeds(self.clients, lambda rows: float(rows["harmed"].mean()), low=0)

    def losing(self, points: float, name: str = "safeguarded") -> Estimate:
        """Return the share of clients that are more than some points below their private model."""
        return _over_seeds(self.clients, lambda rows: share_losing(rows, points, name), low=0)

    def kept(self) -> Estimate:
        """Return which share of the mean gain is kept, over the methods that gain."""
        gaining = self.gaining
        by_method = self.clients.set_index(["data", "label"])
        rows = self.clients[by_method.index.isin(gaining)]
        return _over_seeds(rows, _kept)


def criterion(comparisons: Mapping[str, pd.DataFrame]) -> Criterion:
    """Return what safeguards give the clients of several comparisons."""
    found = [guarded_clients(name, clients) for name, clients in comparisons.items()]
    return of_clients(pd.concat(found, ignore_index=True))


def of_clients(clients: pd.DataFrame) -> Criterion:
    """Return the criterion of clients whose rows are those of `Criterion.clients`."""
    groups = clients.groupby(["data", "label"], sort=False)
    return Criterion(clients, pd.DataFrame({key: _row(own) for key, own in groups}).T)


def guarded_clients(name: str, clients: pd.DataFrame) -> pd.DataFrame:
    """Return the clients of a comparison whose run has a safeguard, as `Criterion.clients`."""
    rows = clients.dropna(subset=["safeguarded_lost", "method_lost"])
    rows = rows.rename(columns={"method": "label"}).assign(data=name)
    rows["method_gain"] = rows["accuracy"] - rows["private_accuracy"]
    rows["safeguarded_gain"] = rows["safeguarded_accuracy"] - rows["private_accuracy"]
    shown = [harmed(own, "safeguarded_") for _, own in rows.groupby("label")]
    rows["harmed"] = pd.concat([pd.Series(dtype=bool), *shown]).astype(bool)
    return rows


def _row(own: pd.DataFrame) -> dict[str, float]:
    """Return a method's row of the table."""
    row: dict[str, float] = {"seeds": own["seed"].nunique()}
    for name in ("private_accuracy", "safeguard_weight", "harmed"):
        row[name] = float(own[name].mean())
    for name in ("method", "safeguarded"):
        effect = effect_of(own.groupby("seed")[f"{name}_gain"].mean())
        row |= {name: effect.gain, f"{name}_low": effect.low, f"{name}_high": effect.high}
        row |= {f"{name}_loses_{points}": share_losing(own, points, name) for points in LOSSES}
    return row


def share_losing(rows: pd.DataFrame, points: float, name: str) -> float:
    """Return the share of clients whose ``safeguarded`` or ``method`` gain is below -points."""
    bound = -points / 100 - 1e-9  # a loss of exactly that many points is not more
    return float((rows[f"{name}_gain"] < bound).mean())


def _kept(rows: pd.DataFrame) -> float:
    """Return the share of the mean gain that is kept, each method counting alike."""
    means = rows.groupby(["data", "label"])[["method_gain", "safeguarded_gain"]].mean().sum()
    return float(means["safeguarded_gain"] / means["method_gain"])


def _over_seeds(
    rows: pd.DataFrame, statistic: Callable[[pd.DataFrame], float], low: float = -math.inf
) -> Estimate:
    """Return a statistic with its interval by the jackknife over seeds.

    Clients of one seed are not independent, so a seed is left out as a whole.
    """
    if rows.empty:
        return Estimate(math.nan)
    value, seeds = statistic(rows), rows["seed"].unique()
    if (count := len(seeds)) < FEWEST_SEEDS:
        return Estimate(value)
    without = np.array([statistic(rows[rows["seed"] != seed]) for seed in seeds])
    if np.ptp(without) == 0:
        return Estimate(value)  # equal seeds do not say that further ones are equal
    error = math.sqrt((count - 1) * without.var())
    width = float(stats.t.isf((1 - CONFIDENCE) / 2, count - 1)) * error
    return Estimate(value, max(low, value - width), value + width)
