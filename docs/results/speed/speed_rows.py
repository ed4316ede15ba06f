"""The tables of benchmarks on this page; see `check.py`."""

from pathlib import Path

from tables import markdown

from benchmarks.records import read_records
from benchmarks.table import COLUMNS, cells

FOLDER = Path(__file__).parent


def table(file: str = "speed.json") -> str:
    """Return the rows of a file, how they were measured, and which targets are missed."""
    records = read_records(FOLDER / file)
    headings = [f"{name}:" if justify == "right" else name for name, justify in COLUMNS]
    rows = [[*cells(row.result), row.conditions.date] for row in records]
    calls = dict.fromkeys(row.conditions for row in records)
    results = [row.result for row in records]
    misses = [result.miss for result in results if result.misses_target]
    lines = [
        *(f"{call.date}, {call}: `uv run {call.command}`" for call in calls),
        f"{len(misses)} of {sum(bool(result.target) for result in results)} targets are missed:",
        *misses,
    ]
    return markdown([*headings, "date"], rows) + "".join(f"\n*{line}*\n" for line in lines)
