"""How each client took part in a run so far: for whoever operates the nodes."""

from datetime import UTC, datetime

import pandas as pd

from fedkd_flwr.runs import Run

SECONDS = ("seconds_train", "seconds_server", "seconds_evaluate")
"""Columns of a round that add up to its duration."""

READ = ("round", "partition_id", "name", "model", "seconds", "failure", "numbers_up")
"""Columns of a client that are read; a run without rounds, or without names, lacks some."""

COUNTS = ("last_asked", "last_valid", "asked", "failures", "last_failed")
"""Columns of the table that are 0 where a client has never been asked, or has never failed."""


def nodes_table(run: Run) -> pd.DataFrame:
    """Return one row per client of the run, by partition-id.

    ``name`` and ``model``; ``last_asked``, ``last_valid`` and ``last_failed`` (rounds, 0 for
    never); ``asked`` and ``failures`` (numbers of rounds); ``seconds`` (the median time of a
    round's replies, as the server measured it; NaN where it did not); ``last_failure`` (its
    reason).
    """
    rows = run.clients.reindex(columns=READ)
    # A contact leaves traffic or a failure; rows with neither repeat an earlier evaluation.
    rows = rows[rows["numbers_up"].notna() | rows["failure"].notna()]
    failed = rows["failure"].notna()
    asked, failures, valid = (
        some.groupby("partition_id") for some in (rows, rows[failed], rows[~failed])
    )
    # The last entry of a column is the last one that is not missing.
    table = pd.DataFrame(
        {
            "name": asked["name"].last(),
            "model": asked["model"].last(),
            "last_asked": asked["round"].last(),
            "last_valid": valid["round"].last(),
            "asked": asked.size(),
            "failures": failures.size(),
            "seconds": valid["seconds"].median(),
            "last_failed": failures["round"].last(),
            "last_failure": failures["failure"].last(),
        }
    )
    everybody = sorted({*range(run.config["num-clients"]), *table.index})
    table = table.reindex(everybody).rename_axis("partition_id")
    missing = {**dict.fromkeys(COUNTS, 0), "name": "", "model": "", "last_failure": ""}
    return table.fillna(missing).astype(dict.fromkeys(COUNTS, int))


def progress(run: Run, now: datetime | None = None) -> str:
    """Return how far a run is, when its last round ended, and how long a round takes."""
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
