"""What the clients of a run reach at its last evaluation, by partition-id."""

import pandas as pd

from fedkd_flwr.runs import Run
from strategies.core.rounds import NEW_CLIENTS


def client_accuracies(run: Run) -> pd.Series:
    """Return the clients' accuracies at the last evaluated round, by partition-id."""
    accuracies: pd.Series = run.last_evaluations["accuracy"]
    return accuracies


def new_client_accuracies(run: Run) -> pd.Series:
    """Return the accuracies of new clients, by partition-id."""
    rounds = (run.summary or {}).get("rounds")
    rows = [row for row in run.further_rows.get(NEW_CLIENTS, []) if row["round"] == rounds]
    accuracies = {row["partition_id"]: row["accuracy"] for row in rows if "accuracy" in row}
    return pd.Series(accuracies, dtype=float).sort_index()


def client_test_images(run: Run) -> pd.Series:
    """Return the sizes of the clients' test splits, by partition-id; empty where not recorded."""
    rows = run.last_evaluations
    images: pd.Series = rows["total"] if "total" in rows else pd.Series(dtype=float)
    return images
