"""The numbers of a run as named series for trackers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedkd_flwr.config.flat_config import flatten


def round_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a round's row by column; other values are left out."""
    return _numbers({name: value for name, value in row.items() if name != "round"})


def client_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of some clients' rows in one round, ``client_accuracy/3``.

    Trackers group series by the text before the slash. It must differ from the columns of rounds,
    since MLflow stores a column as a file and a group as a folder.
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
