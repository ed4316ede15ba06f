"""The table of benchmarks, and single values of it for sentences; see `check_tables.py`.

Files are those of ``python -m benchmarks --json FILE``. A row is identified by its first column.
"""

from pathlib import Path

from tables import markdown

from benchmarks.pairs import Result
from benchmarks.records import read_records
from benchmarks.table import COLUMNS, cells, three_digits


def table(file: Path) -> str:
    """Return the table of all rows with their dates."""
    headings = [f"{name}:" if justify == "right" else name for name, justify in COLUMNS]
    rows = [[*cells(row.result), row.conditions.date] for row in read_records(file)]
    return markdown([*headings, "date"], rows)


def calls(file: Path) -> str:
    """Return one line per call that measured rows: date, conditions and command."""
    found = dict.fromkeys(row.conditions for row in read_records(file))
    return "".join(f"- {call.date}, {call}: `uv run {call.command}`\n" for call in found)


def missed(file: Path) -> str:
    """Return how many targets are missed, with one line for each."""
    results = [row.result for row in read_records(file)]
    misses = [result for result in results if result.misses_target]
    targets = sum(bool(result.target) for result in results)
    if not misses:
        return f"None of {targets} targets is missed."
    lines = "".join(f"- {result.miss}\n" for result in misses)
    return f"{len(misses)} of {targets} targets are missed:\n\n{lines}"


def measured(file: Path, name: str) -> str:
    """Return the measured median with its unit."""
    result = _row(file, name)
    return f"{three_digits(result.measured)} {result.unit}"


def baseline(file: Path, name: str) -> str:
    """Return the median of the baseline with its unit."""
    result = _row(file, name)
    return f"{three_digits(result.baseline)} {result.unit}"


def ratio(file: Path, name: str) -> str:
    """Return the ratio."""
    return f"{_row(file, name).ratio:.2f}"


def target(file: Path, name: str) -> str:
    """Return the target of the ratio in words."""
    return _row(file, name).target


def baseline_for(file: Path, name: str, clients: str, wanted: str) -> str:
    """Return the baseline of a number of clients, scaled to another number of clients."""
    result = _row(file, name)
    return f"{three_digits(result.baseline * int(wanted) / int(clients))} {result.unit}"


def _row(file: Path, name: str) -> Result:
    found = {row.result.name: row.result for row in read_records(file)}
    if name not in found:
        raise ValueError(f"{file.name} has no row {name}.")
    return found[name]
