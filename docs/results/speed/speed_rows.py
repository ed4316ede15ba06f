"""The table of the benchmarks, and figures of its rows for sentences; see `check_tables.py`.

Files are those of ``python -m benchmarks --json FILE``; a row is named by what was measured.
"""

from pathlib import Path

from tables import markdown

from benchmarks.pairs import Result
from benchmarks.records import read_records
from benchmarks.table import COLUMNS, cells, three_digits


def table(file: Path) -> str:
    """Return all rows, each with its date."""
    headings = [f"{name}:" if justify == "right" else name for name, justify in COLUMNS]
    rows = [[*cells(row.result), row.circumstances.date] for row in read_records(file)]
    return markdown([*headings, "date"], rows)


def calls(file: Path) -> str:
    """Return a line a call that rows are from: when, on what, and the command."""
    found = dict.fromkeys(row.circumstances for row in read_records(file))
    return "".join(f"- {call.date}, {call}: `uv run {call.command}`\n" for call in found)


def missed(file: Path) -> str:
    """Return how many rows miss their target, of how many, and a line for each."""
    results = [row.result for row in read_records(file)]
    short = [result for result in results if result.falls_short]
    aimed = sum(bool(result.target) for result in results)
    if not short:
        return f"None of {aimed} targets is missed."
    lines = "".join(f"- {result.shortfall}\n" for result in short)
    return f"{len(short)} of {aimed} targets are missed:\n\n{lines}"


def measured(file: Path, name: str) -> str:
    """Return the median of what was measured, with its unit."""
    result = _row(file, name)
    return f"{three_digits(result.measured)} {result.unit}"


def beside(file: Path, name: str) -> str:
    """Return the median of what it stands beside, with its unit."""
    result = _row(file, name)
    return f"{three_digits(result.baseline)} {result.unit}"


def ratio(file: Path, name: str) -> str:
    """Return the ratio of the two."""
    return f"{_row(file, name).ratio:.2f}"


def target(file: Path, name: str) -> str:
    """Return the ratio that is due, in words."""
    return _row(file, name).target


def beside_for(file: Path, name: str, clients: str, wanted: str) -> str:
    """Return what a row stands beside, of so many clients, in proportion for so many others."""
    result = _row(file, name)
    return f"{three_digits(result.baseline * int(wanted) / int(clients))} {result.unit}"


def _row(file: Path, name: str) -> Result:
    found = {row.result.name: row.result for row in read_records(file)}
    if name not in found:
        raise ValueError(f"{file.name} has no row {name}.")
    return found[name]
