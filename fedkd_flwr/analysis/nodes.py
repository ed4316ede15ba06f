"""How each client took part in a run so far: for whoever operates the nodes."""

from datetime import UTC, datetime

import pandas as pd

from fedkd_flwr.runs import Run

SECONDS = ("seconds_train", "seconds_server", "seconds_evaluate")
"""Columns of a round that add up to its duration."""

COLUMNS = (
    "model", "last_asked", "last_valid", "asked", "failures", "last_failed", "last_failure",
)  # fmt: skip
"""Columns of the table."""


def nodes_table(run: Run) -> pd.DataFrame:
    """Return one row per client that was asked at least once, by partition-id.

    Parameters
    ----------
    run : Run
        A run, finished or not.

    Returns
    -------
    DataFrame
        ``model``, ``last_asked`` and ``last_valid`` (rounds; the latter is 0 where no reply was
        valid), ``asked`` and ``failures`` (numbers of rounds), ``last_failed`` (a round) and
        ``last_failure`` (its reason); 0 and empty where there is none.
    """
    rows = []
    for partition_id, asked in run.clients.groupby("partition_id"):
        failed = asked["failure"].notna()
        failures = asked[failed]
        rows.append(
            {
                "partition_id": partition_id,
                "model": next(iter(asked["model"].dropna()), ""),
                "last_asked": int(asked["round"].max()),
                "last_valid": int(asked.loc[~failed, "round"].max()) if not failed.all() else 0,
                "asked": len(asked),
                "failures": len(failures),
                "last_failed": int(failures["round"].iloc[-1]) if len(failures) else 0,
                "last_failure": str(failures["failure"].iloc[-1]) if len(failures) else "",
            }
        )
    return pd.DataFrame(rows, columns=["partition_id", *COLUMNS]).set_index("partition_id")


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
