"""What trackers draw: the numbers of a run, as series by name."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedkd_flwr.flat import flatten


def round_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round's row by column; what is no number has no value."""
    return _numbers({name: value for name, value in row.items() if name != "round"})


def client_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of some clients' rows in one round, ``client_accuracy/3``.

    Trackers draw what stands before the slash as one group, and none may be a column of rounds:
    where MLflow keeps a file for that, there cannot be a folder.
    """
    return {
        f"client_{name}/{row['partition_id']}": value
        for row in rows
        for name, value in round_values(row).items()
        if name != "partition_id"
    }


def summary_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a summary, ``summary/last_round.accuracy_mean``."""
    return {f"summary/{name}": value for name, value in _numbers(flatten(summary)).items()}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
