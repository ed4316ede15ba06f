"""The ten-seed comparison that the README shows.

Gains over `local` with intervals, for a table, a figure and claims.
"""

import functools

import pandas as pd
from columns import REFERENCE, Result, range_of_bytes, results
from tables import caption, gain_of, markdown

from fedkd_flwr.analysis.significance import Effect, effects_of
from fedkd_flwr.methods import METHODS

SETS = {
    "benchmark-tuned/retuned-k-classes-grouped": "two groups of classes",
    "benchmark-tuned/retuned-dirichlet": "Dirichlet 0.1",
}
"""The sets that are compared, and the names of their splits."""


def gains(name: str) -> pd.DataFrame:
    """Return the gain over `local` of each method and seed of a set, in points.

    Methods that are not in the first set are left out.

    Returns
    -------
    DataFrame
        One row per method, in the order of its mean gain in the first set; one column per seed.
    """
    first, own = (_by_seed(one) for one in (next(iter(SETS)), name))
    order = first.mean(axis=1).sort_values(ascending=False).index
    return 100 * own.loc[order]


@functools.cache
def effects(name: str) -> dict[str, Effect]:
    """Return the mean gain of each method of a set, with its 95% interval, as fractions."""
    return effects_of(gains_by_method(name))


def gains_by_method(name: str) -> dict[str, list[float]]:
    """Return the gain over `local` of each method of a set by seed, as fractions."""
    return {str(method): list(row) for method, row in _by_seed(name).iterrows()}


def table(*methods: str) -> str:
    """Return one row per method: what it exchanges in a run, and its gain on both splits.

    A gain is bold if its verdict is *better* or *worse*, corrected for all methods of its set.

    Parameters
    ----------
    *methods : str
        Those that are shown.
    """
    columns = [effects(name) for name in SETS]
    found = {name: results(name) for name in SETS}
    rows = [
        [f"`{method}`", _exchanged(method, found), *(_cell(column[method]) for column in columns)]
        for method in gains(next(iter(SETS))).index
        if method in methods
    ]
    headings = ["method", "exchanged in a run", *(f"{split}:" for split in SETS.values())]
    groups = {(name,): own for name, own in found.items()}
    return f"{markdown(headings, rows)}\n{caption(groups, {}, has_verdicts=False)}\n"


def _by_seed(name: str) -> pd.DataFrame:
    runs = [(one.strategy, one.seed, one.gain) for one in results(name)]
    frame = pd.DataFrame(runs, columns=["strategy", "seed", "gain"])
    return frame.pivot(index="strategy", columns="seed", values="gain").drop(REFERENCE)


def _exchanged(method: str, found: dict[str, list[Result]]) -> str:
    groups = [[one for one in own if one.strategy == method] for own in found.values()]
    return f"{range_of_bytes(groups)} of {METHODS[method].record.exchanged}"


def _cell(effect: Effect) -> str:
    text = gain_of(effect)
    return text if effect.outcome == "not shown" else f"**{text}**"
