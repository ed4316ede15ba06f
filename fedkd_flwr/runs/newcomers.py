"""Clients that join a finished run without further rounds, and what the run records of them.

Only runs that store their global models can receive them. The newcomers are new clients: the
server serves them as after its last round, and their rows are in the table ``new_clients``. The
recorded config, all other rows, the global models and the checkpoint stay as they are.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedkd_flwr.files import write_text
from fedkd_flwr.runs.reading import Row, Run
from fedkd_flwr.runs.writing import as_lines, write_json
from strategies.core.rounds import NEW_CLIENTS

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration

CLIENTS = "num-clients"
"""The key of the number of clients, which may grow in a deployment."""


def newcomers(run: Run, wanted: "Configuration") -> list[int]:
    """Return the partition-ids of the clients that a finished run is to receive.

    Parameters
    ----------
    run : Run
        Stopped or finished.
    wanted : Configuration
        The config with which it is resumed.

    Returns
    -------
    list of int
        The clients above the run's number that have no model of it yet, ascending; empty if rounds
        are added, since they then take part in these.
    """
    planned = wanted.run.plan.num_server_rounds
    keeps_models = wanted.run.method.record.keeps_global_models
    if not run.summary or not keeps_models or planned != run.config["num-server-rounds"]:
        return []
    received = {row["partition_id"] for row in received_by(run) if row.get("failure") is None}
    ids = range(run.config[CLIENTS], wanted.run.plan.num_clients)
    return [n for n in ids if n not in received]


def received_by(run: Run) -> list[Row]:
    """Return the rows of the new clients that a run has received after its last round."""
    rounds = len(run.round_rows)
    return [row for row in run.further_rows.get(NEW_CLIENTS, []) if row["round"] == rounds]


def write_newcomers(run: Run, rows: Sequence[Row]) -> None:
    """Record that newcomers have joined, and their rows instead of those of failed attempts.

    Parameters
    ----------
    run : Run
        Finished, with the description to record; see `Run.continued`.
    rows : sequence of dict
        A row for each newcomer.

    Raises
    ------
    OSError
        If the disk refuses to write.
    """
    write_json(run.path / "config.json", run.description)
    new = {(row["round"], row["partition_id"]) for row in rows}
    before = run.further_rows.get(NEW_CLIENTS, [])
    kept = [row for row in before if (row["round"], row["partition_id"]) not in new]
    write_text(run.path / f"{NEW_CLIENTS}.jsonl", as_lines([*kept, *rows]), durable=True)
