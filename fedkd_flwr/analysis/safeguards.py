"""What a safeguard gives the clients of a run, beside the method's model alone."""

import pandas as pd

from fedkd_flwr.analysis.harm import mcnemar, shown_by_false_discovery_rate
from fedkd_flwr.runs import Run
from strategies.core.safeguard import SAFEGUARD_COLUMNS

LOST_AND_WON = ("safeguarded_lost", "safeguarded_won", "method_lost", "method_won")
"""Test images that only one of two gets right: the private model, or what it is compared with."""

OF_CLIENTS = (*SAFEGUARD_COLUMNS, *LOST_AND_WON)
"""Columns of `safeguarded`."""

SHOWN = "safeguarded_harmed"
"""Share of clients that are shown to be worse with the safeguard than with their private model."""


def safeguarded(run: Run) -> pd.DataFrame:
    """Return what the safeguard of a run gave each client at the last evaluation.

    Returns
    -------
    DataFrame
        By partition-id, the columns `OF_CLIENTS`: accuracies, the weight of the method's model,
        and the images that only the private model gets right, or only what it is compared with:
        the deployed prediction, and the method's model alone. No columns for a run without.
    """
    rows = run.last_evaluations
    if SAFEGUARD_COLUMNS[0] not in rows:
        return pd.DataFrame(index=rows.index)
    found = rows.reindex(columns=[*SAFEGUARD_COLUMNS, "safeguarded_lost", "method_lost"])
    for name, right in (("safeguarded", "safeguarded_correct"), ("method", "correct")):
        found[f"{name}_won"] = rows[right] - rows["private_correct"] + found[f"{name}_lost"]
    return found[list(OF_CLIENTS)]


def harmed(clients: pd.DataFrame, name: str = "safeguarded") -> pd.Series:
    """Return which clients are shown to be worse than their private model, of all seeds.

    McNemar's exact test for each client, as in `fedkd_flwr.analysis.harm`.

    Parameters
    ----------
    clients : DataFrame
        One method's rows, with the columns of `safeguarded`. Those without counts are left out.
    name : str
        Whose predictions: ``safeguarded``, or ``method`` for the method's model alone.
    """
    counts = clients[[f"{name}_lost", f"{name}_won"]].dropna()
    if counts.empty:
        return pd.Series(dtype=bool)
    lost, won = counts.to_numpy(float).T
    return pd.Series(shown_by_false_discovery_rate(mcnemar(lost, won)), index=counts.index)


def with_safeguards(table: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Return a table of means with the share of `harmed` clients, if any run has a safeguard.

    Parameters
    ----------
    table : DataFrame
        One row a label.
    clients : DataFrame
        Of `fedkd_flwr.analysis.results.client_results`.
    """
    if "safeguarded_lost" not in clients:
        return table
    shares = {label: harmed(clients[clients["method"] == label]).mean() for label in table.index}
    return table.join(pd.Series(shares, name=SHOWN, dtype=float))
