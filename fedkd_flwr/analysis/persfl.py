"""What PersFL's clients tried and chose: pairs of lambda and T, and rounds of teachers."""

from collections.abc import Sequence

import pandas as pd

from fedkd_flwr.runs import Run
from strategies.persfl import PAIRS


def has_pairs(run: Run) -> bool:
    """Return whether a run has PersFL's table of pairs."""
    return PAIRS in run.further_rows


def tried_pairs(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the (lambda, T) pairs that were tried after the last round of each run.

    Raises
    ------
    ValueError
        If a run has no table of pairs.
    """
    for run in runs:
        if not has_pairs(run):
            raise ValueError(f"{run.path.name} has no table of pairs of lambda and T.")
    tables = [run.table(PAIRS) for run in runs]
    return pd.concat([table[table["round"] == table["round"].max()] for table in tables])


def mean_by_pair(pairs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the mean of a column over clients and seeds, by lambda (rows) and T (columns).

    At lambda = 0 T has no effect, and only one T is tried. Its value fills the whole row.
    """
    means = pairs.groupby(["lambda", "temperature"])[column].mean().unstack()
    if 0.0 in means.index:
        means.loc[0.0] = means.loc[0.0].max()
    return means


def teacher_rounds(runs: Sequence[Run]) -> pd.Series:
    """Return the rounds from which the clients' teachers are, at each run's last selection.

    Raises
    ------
    ValueError
        If a run has no teachers.
    """
    rounds = []
    for run in runs:
        if "teacher_round" not in run.clients:
            raise ValueError(f"{run.path.name} has no teachers.")
        taught = run.clients.dropna(subset="teacher_round")
        # A continued run has the teachers of earlier selections too.
        rounds.append(taught.loc[taught["round"] == taught["round"].max(), "teacher_round"])
    return pd.concat(rounds)
