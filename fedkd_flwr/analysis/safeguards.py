"""What a safeguard gives the clients of a run, beside the method's model alone."""

import math

import numpy as np
import pandas as pd

from fedkd_flwr.analysis.evaluations import last_evaluations
from fedkd_flwr.analysis.harm import mcnemar, shown_by_false_discovery_rate
from fedkd_flwr.runs import Run
from strategies.core.safeguard import SAFEGUARD_COLUMNS

OF_CLIENTS = (*SAFEGUARD_COLUMNS, "safeguarded_lost", "safeguarded_won")
"""Columns of `safeguarded`."""

SHOWN = "safeguarded_harmed"
"""Share of clients that are shown to be worse with the safeguard than with their private model."""


def safeguarded(run: Run) -> pd.DataFrame:
    """Return what the safeguard of a run gave each client at the last evaluation.

    Returns
    -------
    DataFrame
        By partition-id, the columns `OF_CLIENTS`: accuracies, the weight of the method's model,
        and the images that only the private model or only the deployed prediction gets right.
        NaN for clients without a safeguard.
    """
    rows = last_evaluations(run)
    if SAFEGUARD_COLUMNS[0] not in rows:
        return pd.DataFrame(math.nan, index=rows.index, columns=list(OF_CLIENTS))
    found = rows[[*SAFEGUARD_COLUMNS, "safeguarded_lost"]].copy()
    gained = rows["safeguarded_correct"] - rows["private_correct"]
    found["safeguarded_won"] = gained + rows["safeguarded_lost"]
    return found


def mean_safeguarded(run: Run) -> dict[str, float]:
    """Return the means over clients of `SAFEGUARD_COLUMNS`, NaN for a run without a safeguard."""
    means = safeguarded(run)[list(SAFEGUARD_COLUMNS)].mean()
    return {str(name): float(value) for name, value in means.items()}


def share_harmed(clients: pd.DataFrame) -> float:
    """Return the share of clients shown to be worse than their private model, of all seeds.

    McNemar's exact test for each client, as in `fedkd_flwr.analysis.harm`.

    Parameters
    ----------
    clients : DataFrame
        With the columns of `safeguarded`.
    """
    known = clients.dropna(subset=["safeguarded_lost", "safeguarded_won"])
    if known.empty:
        return math.nan
    lost, won = (known[f"safeguarded_{name}"].to_numpy(float) for name in ("lost", "won"))
    return float(np.mean(shown_by_false_discovery_rate(mcnemar(lost, won))))


def with_safeguards(table: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with the share of `share_harmed`, if any run has a safeguard.

    Parameters
    ----------
    table : DataFrame
        One row a label.
    clients : DataFrame
        Of `fedkd_flwr.analysis.results.client_results`.
    """
    if "safeguarded_lost" not in clients:
        return table
    shares = {label: share_harmed(clients[clients["method"] == label]) for label in table.index}
    return table.join(pd.Series(shares, name=SHOWN, dtype=float))


def note_on_safeguards(clients: pd.DataFrame) -> list[str]:
    """Say what the columns of a safeguard compare, if any run has one."""
    if "safeguarded_lost" not in clients:
        return []
    return [
        "Safeguarded: each client weighs the method's model and a private one on validation data. "
        "Below private, shown: McNemar's exact test for each client against its private model."
    ]
