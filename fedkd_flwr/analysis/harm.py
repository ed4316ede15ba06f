"""Which clients a model harms, beyond the noise of small test splits.

Both models of a client answer the same images, so the test is McNemar's. It counts the images that
only one of the two gets right, which runs record with ``record-answers``.
"""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fedkd_flwr.analysis.significance import CONFIDENCE
from fedkd_flwr.runs import Run
from strategies.core.safeguard import SAFEGUARD_COLUMNS

FALSE_DISCOVERIES = 0.05
"""Expected share of false discoveries among the clients that are called harmed."""

Numbers = NDArray[np.float64]

SHOWN = {"harmed_shown": "", "safeguarded_harmed": "safeguarded_"}
"""Columns of the share of clients that are shown to be worse than with the reference, and with the
safeguard worse than with their private model; by the prefix of their counts, ``lost`` and ``won``.
"""


def harmed(clients: pd.DataFrame, prefix: str = "") -> pd.Series:
    """Return which clients are shown to be harmed; those without counts are left out."""
    counts = clients[[f"{prefix}lost", f"{prefix}won"]].dropna()
    if counts.empty:
        return pd.Series(dtype=bool)
    lost, won = counts.to_numpy(float).T
    return pd.Series(shown_by_false_discovery_rate(mcnemar(lost, won)), index=counts.index)


def with_harm(table: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with the columns `SHOWN`, where some run has counts."""
    for name, prefix in SHOWN.items():
        if f"{prefix}lost" in clients and clients[f"{prefix}lost"].notna().any():
            own = {label: clients[clients["method"] == label] for label in table.index}
            shares = {label: harmed(rows, prefix).mean() for label, rows in own.items()}
            table = table.join(pd.Series(shares, name=name, dtype=float))
    return table


def mcnemar(lost: Numbers, won: Numbers) -> Numbers:
    """Return McNemar's exact p value, one-sided, that more answers are lost than won.

    Lost are the images that only the reference gets right, won those that only the method does.
    """
    p_values: Numbers = stats.binom.sf(lost - 1, lost + won, 0.5)
    return p_values


def shown_by_false_discovery_rate(p_values: Numbers) -> NDArray[np.bool_]:
    """Return which clients are harmed, by Benjamini and Hochberg at `FALSE_DISCOVERIES`."""
    adjusted = stats.false_discovery_control(p_values, method="bh")
    return np.asarray(adjusted <= FALSE_DISCOVERIES)


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


def notes_on_harm(clients: pd.DataFrame) -> list[str]:
    """Say how precisely a client is measured, and how harm is distinguished from noise."""
    images, half_width = precision_of(clients)
    if math.isnan(images):
        return []
    notes = [
        f"A client's accuracy is measured to ±{100 * half_width:.1f} points (95% interval) at the "
        f"median test split of {images:,.0f} images."
    ]
    has_answers = clients.dropna(subset="gain")["lost"].notna()
    if not has_answers.any():
        return notes
    lacking = f"; {(~has_answers).mean():.0%} of the clients recorded no answers"
    return [
        *notes,
        f"Shown harmed: McNemar's exact test for each client, at most {FALSE_DISCOVERIES:.0%} "
        "false discoveries, on the images that only one of the two models gets right"
        f"{'' if has_answers.all() else lacking}.",
    ]


COUNTS = ("safeguarded_lost", "safeguarded_won", "method_lost", "method_won")
"""Test images that only one of two gets right: the private model, or what it is compared with."""


def safeguarded(run: Run) -> pd.DataFrame:
    """Return what the safeguard of a run gave each client at the last evaluation.

    By partition-id, `SAFEGUARD_COLUMNS`, and `COUNTS` of the private model beside the deployed
    prediction, and beside the method's model alone. No columns for a run without.
    """
    rows = run.last_evaluations
    if SAFEGUARD_COLUMNS[0] not in rows:
        return pd.DataFrame(index=rows.index)
    found = rows.reindex(columns=[*SAFEGUARD_COLUMNS, "safeguarded_lost", "method_lost"])
    for name, right in (("safeguarded", "safeguarded_correct"), ("method", "correct")):
        found[f"{name}_won"] = rows[right] - rows["private_correct"] + found[f"{name}_lost"]
    return found[[*SAFEGUARD_COLUMNS, *COUNTS]]
