"""The table of results: column headings and cells."""

import math
from collections.abc import Iterable

from rich import box
from rich.console import JustifyMethod
from rich.table import Table

from benchmarks.pairs import Result

COLUMNS: tuple[tuple[str, JustifyMethod], ...] = (
    ("measured", "left"),
    ("median", "right"),
    ("baseline", "left"),
    ("median", "right"),
    ("ratio", "right"),
    ("target", "left"),
)
"""Column headings and the alignment of their cells."""


def table_of(results: Iterable[Result], title: str) -> Table:
    """Return a table for the terminal, one row per result."""
    table = Table(title=title, box=box.MARKDOWN)
    for heading, justify in COLUMNS:
        table.add_column(heading, justify=justify)
    for result in results:
        table.add_row(*cells(result))
    return table


def cells(result: Result) -> tuple[str, ...]:
    """Return the cells of a result's row."""
    return (
        result.name,
        f"{three_digits(result.measured)} {result.unit}",
        result.baseline_name,
        f"{three_digits(result.baseline)} {result.unit}",
        f"{result.ratio:.2f}",
        result.target,
    )


def three_digits(value: float) -> str:
    """Format a positive number with three significant digits, and all digits before the point."""
    decimals = 2 - math.floor(math.log10(value))
    return f"{value:,.{max(decimals, 0)}f}"
