"""Results of benchmarks in a JSON file: one row of the table per line, each with its date.

A later call replaces only the rows that it measures, so a results page can be updated in parts.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.pairs import Result


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement.

    The machine is its cores, their architecture, the widest vector instructions that PyTorch uses,
    which change its speed up to twofold, and the GPU. The load is the average of the minute before.
    """

    date: str
    machine: str
    load: float
    python: str
    pytorch: str
    command: str

    def __str__(self) -> str:
        """Return the conditions in words, without the date and the command."""
        return (
            f"{self.machine}, load {self.load:.1f}, one thread, "
            f"Python {self.python}, PyTorch {self.pytorch}"
        )


@dataclass(frozen=True)
class Record:
    """A row of the table and the conditions of its measurement."""

    result: Result
    conditions: Conditions


def current_conditions(names: Sequence[str]) -> Conditions:
    """Return the present conditions for the named benchmarks."""
    import torch  # deferred: the number of threads is set first

    processor = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    cards = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return Conditions(
        date=date.today().isoformat(),
        machine=", ".join([f"{os.cpu_count()} cores ({processor})", *cards]),
        load=round(os.getloadavg()[0], 1),
        python=platform.python_version(),
        pytorch=version("torch"),
        command=" ".join(["python -m benchmarks", *names]),
    )


def save_record(record: Record, file: Path) -> None:
    """Write a row to a file. It replaces the row of its name, or is appended."""
    from fedkd_flwr.files import write_text  # deferred: NumPy's threads are set first

    rows = {stored.result.name: stored for stored in read_records(file)}
    rows[record.result.name] = record
    values = ({**asdict(row.result), **asdict(row.conditions)} for row in rows.values())
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in values)
    write_text(file, f"[\n{lines}\n]\n")


def read_records(file: Path) -> list[Record]:
    """Return the rows of a file, or an empty list if it does not exist.

    Raises `ValueError` if the file holds anything else.
    """
    if not file.exists():
        return []
    try:
        lines = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(lines, list):
            raise TypeError("not a list")
        return [_record(line) for line in lines]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{file} does not hold rows of benchmarks") from error


def _record(line: dict[str, Any]) -> Record:
    conditions = {name: line.pop(name) for name in Conditions.__dataclass_fields__}
    return Record(Result(**line), Conditions(**conditions))
