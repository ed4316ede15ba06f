"""Headline claims of ten seeds beside the same runs on fresh seeds; see `check.py`."""

import pandas as pd
from columns import Result, results
from runs import set_names
from tables import caption, gain_of
from ten_seeds import effects

from fedkd_flwr.analysis.rendering import in_markdown

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
    rows: list[dict[str, str]] = []
    found: dict[tuple[str, ...], list[Result]] = {}
    for part, split in SPLITS.items():
        if f"{after}{part}" not in set_names():
            continue
        old, new = effects(f"{before}{part}"), effects(f"{after}{part}")
        found[(part,)] = results(f"{after}{part}", {})
        rows += [
            {
                "split": split,
                "method": f"`{method}`",
                "before, points (95%)": gain_of(old[method]),
                "fresh seeds, points (95%)": gain_of(new[method]),
                "verdict before": old[method].outcome,
                "verdict of fresh seeds": new[method].outcome,
            }
            for method in sorted(new, key=lambda method: -old[method].gain)
        ]
    text = in_markdown(pd.DataFrame(rows), [])
    return f"{text}\n{caption(found, {}, has_verdicts=False)}\n"
