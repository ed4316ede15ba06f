"""How each client took part in a run so far: for whoever operates the nodes."""

import math
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from fedkd_flwr.runs import Run

SECONDS = ("seconds_train", "seconds_server", "seconds_evaluate")
"""Columns of a round that add up to its duration."""

COLUMNS = (
    "name", "model", "last_asked", "last_valid", "asked", "failures", "seconds", "last_failed",
    "last_failure",
)  # fmt: skip
"""Columns of the table."""


def nodes_table(run: Run) -> pd.DataFrame:
    """Return one row per client of the run, by partition-id.

    Parameters
    ----------
    run : Run
        A run, finished or not.

    Returns
    -------
    DataFrame
        ``name`` and ``model``; ``last_asked``, ``last_valid`` and ``last_failed`` (rounds, 0 for
        never); ``asked`` and ``failures`` (numbers of rounds); ``seconds`` (the median time of a
        round's replies, as the server measured it; NaN where it did not); ``last_failure`` (its
        reason).
    """
    known = dict(tuple(run.clients.groupby("partition_id")))
    everybody = sorted({*range(run.config["num-clients"]), *known})
    rows = [_row(n, known.get(n, run.clients.iloc[:0])) for n in everybody]
    return pd.DataFrame(rows, columns=["partition_id", *COLUMNS]).set_index("partition_id")


def _row(partition_id: int, asked: pd.DataFrame) -> dict[str, Any]:
    """Return a row of the table.

    Parameters
    ----------
    partition_id : int
        The client.
    asked : DataFrame
        Its lines of ``clients.jsonl``.
    """
    failed = asked["failure"].notna()
    failures, valid = asked[failed], asked[~failed]
    return {
        "partition_id": partition_id,
        "name": _last(asked, "name", ""),
        "model": _last(asked, "model", ""),
        "last_asked": _last(asked, "round", 0),
        "last_valid": _last(valid, "round", 0),
        "asked": len(asked),
        "failures": len(failures),
        "seconds": valid["seconds"].median() if "seconds" in valid else math.nan,
        "last_failed": _last(failures, "round", 0),
        "last_failure": _last(failures, "failure", ""),
    }


def _last(rows: pd.DataFrame, column: str, nothing: Any) -> Any:
    """Return the last entry of a column, or `nothing` where there is none."""
    if column not in rows:
        return nothing
    entries = rows[column].dropna()
    return entries.iloc[-1] if len(entries) else nothing


def progress(run: Run, now: datetime | None = None) -> str:
    """Return how far a run is, when its last round ended, and how long a round takes.

    Parameters
    ----------
    run : Run
        A run, finished or not.
    now : datetime, optional
        The present, with a time zone; that of the machine if left out.
    """
    planned = run.config["num-server-rounds"]
    if not len(run.rounds):
        return f"round 0 of {planned}"
    written = datetime.fromtimestamp((run.path / "rounds.jsonl").stat().st_mtime, UTC)
    age = ((now or datetime.now(UTC)) - written).total_seconds()
    taken = run.rounds[list(SECONDS)].sum(axis=1).median()
    state = "finished" if run.finished else "last round"
    return (
        f"round {int(run.rounds['round'].iloc[-1])} of {planned}, "
        f"{state} {written:%Y-%m-%d %H:%M:%S} UTC ({age:.0f} s ago), {taken:.1f} s a round (median)"
    )
