"""What was measured, kept in a JSON file: one row of the table a line, each with its own date.

A later call replaces the rows that it measures and leaves the others, so that a page can be
brought up to date in parts.
"""

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.pairs import Result

DIGITS = 6
"""Significant digits that are kept of what was measured."""


@dataclass(frozen=True)
class Circumstances:
    """How something was measured.

    Attributes
    ----------
    date : str
        The day, as in ``2026-11-21``.
    machine : str
        Its cores, their kind, and the widest instructions that PyTorch uses on them, by which
        its arithmetic differs up to twofold.
    load : float
        How busy it was before: programs that wanted to run, mean of a minute.
    python, pytorch : str
        Versions.
    command : str
        The command line, with every benchmark by its name.
    """

    date: str
    machine: str
    load: float
    python: str
    pytorch: str
    command: str

    def __str__(self) -> str:
        """Return what the figures were taken on; the date and the command stand elsewhere."""
        return (
            f"{self.machine}, load {self.load:.1f}, one thread, "
            f"Python {self.python}, PyTorch {self.pytorch}"
        )


@dataclass(frozen=True)
class Record:
    """A row of the table, and how it was measured."""

    result: Result
    circumstances: Circumstances


def circumstances_of(names: Sequence[str]) -> Circumstances:
    """Return how benchmarks are measured here and now."""
    from torch.backends.cpu import get_cpu_capability  # deferred: threads are set first

    return Circumstances(
        date=date.today().isoformat(),
        machine=f"{os.cpu_count()} cores ({platform.machine()}, {get_cpu_capability()})",
        load=round(os.getloadavg()[0], 1),
        python=platform.python_version(),
        pytorch=version("torch"),
        command=" ".join(["python -m benchmarks", *names]),
    )


def keep(record: Record, file: Path) -> None:
    """Put a row into a file, in the place of the one with its name or at the end."""
    from fedkd_flwr.files import write_text  # deferred: it loads NumPy, whose threads are set first

    rows = {kept.result.name: kept for kept in read_records(file)}
    rows[record.result.name] = record
    lines = ",\n".join(json.dumps(_line(kept), ensure_ascii=False) for kept in rows.values())
    write_text(file, f"[\n{lines}\n]\n")


def read_records(file: Path) -> list[Record]:
    """Return the rows of a file, none if it is not there.

    Raises
    ------
    ValueError
        If it is something else.
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


def _line(record: Record) -> dict[str, Any]:
    """Return a row as JSON has it, which knows no infinity: a target that is not set is null."""
    result = record.result
    figures = {name: _rounded(getattr(result, name)) for name in ("measured", "baseline", "ratio")}
    target = {
        "at_most": result.at_most if math.isfinite(result.at_most) else None,
        "at_least": result.at_least or None,
    }
    return {**asdict(result), **figures, **target, **asdict(record.circumstances)}


def _record(line: dict[str, Any]) -> Record:
    values = dict(line)
    circumstances = {name: values.pop(name) for name in Circumstances.__dataclass_fields__}
    target = {name: values.pop(name) for name in ("at_most", "at_least")}
    known = {name: value for name, value in target.items() if value is not None}
    return Record(Result(**values, **known), Circumstances(**circumstances))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
