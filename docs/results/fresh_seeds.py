"""Headline claims of ten seeds beside the same runs on fresh seeds; see `check.py`."""

from collections.abc import Iterator

import pandas as pd
from columns import results
from runs import set_names
from tables import caption, gain_of
from ten_seeds import effects

from fedkd_flwr.analysis.rendering import in_markdown
from fedkd_flwr.analysis.significance import Effect

SPLITS = {
    "k-classes-grouped": "two groups",
    "dirichlet": "Dirichlet 0.1",
    "mixed-k-classes-grouped": "two groups, four architectures",
    "mixed-dirichlet": "Dirichlet 0.1, four architectures",
    "cifar10-k-classes-grouped": "CIFAR-10, two groups",
    "cifar10-dirichlet": "CIFAR-10, Dirichlet 0.1",
    "cifar10-mixed-k-classes-grouped": "CIFAR-10, two groups, mixed architectures",
    "cifar10-mixed-dirichlet": "CIFAR-10, Dirichlet 0.1, mixed architectures",
}
"""The last part of the sets' names, and what their splits are called."""


def table(before: str, after: str) -> str:
    """Return the gain over `local` of each method that was run again, before and after.

    Rows have the order of the gain before, within a split. Verdicts are corrected for the methods
    of their own set.

    Parameters
    ----------
    before, after : str
        First part of the names of the published sets and of those with fresh seeds. Splits that
        were not run on fresh seeds are left out.
    """
    rows = [
        {
            "split": SPLITS[part],
            "method": f"`{method}`",
            "before, points (95%)": gain_of(old),
            "fresh seeds, points (95%)": gain_of(new),
            "verdict before": old.outcome,
            "verdict of fresh seeds": new.outcome,
        }
        for part, method, old, new in _repeated(before, after)
    ]
    parts = dict.fromkeys(part for part, *_ in _repeated(before, after))
    found = {(part,): results(f"{after}{part}", {}) for part in parts}
    text = in_markdown(pd.DataFrame(rows), [])
    return f"{text}\n{caption(found, {}, has_verdicts=False)}\n"


def same_verdicts(before: str, after: str) -> str:
    """Return how many verdicts of `table` are the same before and after, such as ``17 of 18``."""
    same = [old.outcome == new.outcome for _, _, old, new in _repeated(before, after)]
    return f"{sum(same)} of {len(same)}"


def _repeated(before: str, after: str) -> Iterator[tuple[str, str, Effect, Effect]]:
    """Yield the split, the method, and its gain before and after, the largest before first."""
    for part in SPLITS:
        if f"{after}{part}" not in set_names():
            continue
        old, new = effects(f"{before}{part}"), effects(f"{after}{part}")
        for method in sorted(new, key=lambda method: -old[method].gain):
            yield part, method, old[method], new[method]
