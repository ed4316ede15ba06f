"""Whether safeguards keep clients from falling behind, over the methods of several comparisons.

The criterion has two sides. At most `MOST_HARMED` of all clients are shown to be worse than their
private model. At least `LEAST_KEPT` of the mean gain is kept, over the methods that gain alone.
An aim is met if the bound of the interval meets it: few clients show nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedkd_flwr.analysis.columns import percent
from fedkd_flwr.analysis.harm import harmed
from fedkd_flwr.analysis.significance import CONFIDENCE, FEWEST_SEEDS, effect_of

MOST_HARMED = 0.02
"""Share of clients shown to be worse that the criterion allows."""

LEAST_KEPT = 0.8
"""Share of the mean gain that the criterion requires."""

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

    def __str__(self) -> str:
        if math.isnan(self.low):
            return percent(self.value)
        return f"{percent(self.value)} ({percent(self.low)} to {percent(self.high)})"


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

    def most_harmed(self) -> float:
        """Return the upper bound of the share of clients shown to be worse with a safeguard.

        Where there is no interval over seeds, the exact bound of Clopper and Pearson over clients.
        """
        shown = self.harmed()
        if not math.isnan(shown.high):
            return shown.high
        number, tail = len(self.clients), (1 - CONFIDENCE) / 2
        count = round(shown.value * number)
        return float(stats.beta.isf(tail, count + 1, number - count)) if count < number else 1.0

    @property
    def notes(self) -> list[str]:
        """Who loses, and both sides of the criterion, a sentence each."""
        safe, kept, most = self.harmed(), self.kept(), self.most_harmed()
        losing = " and ".join(
            f"{self.losing(points)} lose more than {points} points to their private model, "
            f"{self.losing(points, 'method')} with the method alone"
            for points in LOSSES
        )
        shown = (
            f"Safeguards: of {len(self.clients)} clients {losing}. Shown to be worse are {safe}; "
            f"the upper bound is {percent(most)} (aim: at most {MOST_HARMED:.0%}, "
            f"{_met(safe.value <= MOST_HARMED, most <= MOST_HARMED)})."
        )
        if not self.gaining:
            return [shown, "No method with a safeguard gains alone, so there is no gain to keep."]
        gain = (
            f"Safeguards keep {kept} of the mean gain, over {len(self.gaining)} of "
            f"{len(self.table)} methods that gain at least {100 * SMALLEST_GAIN:g} points alone "
            f"(aim: at least {LEAST_KEPT:.0%}, "
            f"{_met(kept.value >= LEAST_KEPT, kept.low >= LEAST_KEPT)})."
        )
        return [shown, gain]


def criterion(comparisons: Mapping[str, pd.DataFrame]) -> Criterion:
    """Return what safeguards give the clients of several comparisons."""
    found = [guarded_clients(name, clients) for name, clients in comparisons.items()]
    return of_clients(pd.concat(found, ignore_index=True))


def of_clients(clients: pd.DataFrame) -> Criterion:
    """Return the criterion of clients whose rows are those of `Criterion.clients`."""
    groups = clients.groupby(["data", "label"], sort=False)
    return Criterion(clients, pd.DataFrame({key: _row(own) for key, own in groups}).T)


def guarded_clients(name: str, clients: pd.DataFrame) -> pd.DataFrame:
    """Return the clients of a comparison whose run has a safeguard, with its name.

    As `Criterion.clients`; empty without a safeguard.
    """
    if "method_lost" not in clients:
        return pd.DataFrame()
    rows = clients.dropna(subset=["safeguarded_lost", "method_lost"])
    rows = rows.rename(columns={"method": "label"}).assign(data=name)
    rows["method_gain"] = rows["accuracy"] - rows["private_accuracy"]
    rows["safeguarded_gain"] = rows["safeguarded_accuracy"] - rows["private_accuracy"]
    shown = [harmed(own, "safeguarded_") for _, own in rows.groupby("label")]
    rows["harmed"] = pd.concat([pd.Series(dtype=bool), *shown]).astype(bool)
    return rows


def notes_on_safeguards(clients: pd.DataFrame) -> list[str]:
    """Say what safeguards give the clients of a comparison; nothing if no run has one."""
    guarded = guarded_clients("", clients)
    if guarded.empty:
        return []
    return [
        "Safeguarded: each client weighs the method's model and a private one on validation data. "
        "Below private, shown: McNemar's exact test for each client against its private model, "
        "with at most 5% false discoveries.",
        *of_clients(guarded).notes,
    ]


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
    """Return a statistic with its interval by the jackknife over seeds."""
    if rows.empty:
        return Estimate(math.nan)
    value, seeds = statistic(rows), rows["seed"].unique()
    if (count := len(seeds)) < FEWEST_SEEDS:
        return Estimate(value)
    # Clients of one seed are not independent, so a seed is left out as a whole.
    without = np.array([statistic(rows[rows["seed"] != seed]) for seed in seeds])
    if np.ptp(without) == 0:
        return Estimate(value)  # equal seeds do not say that further ones are equal
    error = math.sqrt((count - 1) * without.var())
    width = float(stats.t.isf((1 - CONFIDENCE) / 2, count - 1)) * error
    return Estimate(value, max(low, value - width), value + width)


def _met(holds: bool, is_certain: bool) -> str:
    """Return whether an aim is met, by its estimate and by the bound of its interval."""
    if not holds:
        return "missed"
    return "met" if is_certain else "not shown"
