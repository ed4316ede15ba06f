"""Tables of a comparison at the width of the terminal."""

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.rendering import in_short
from fedkd_flwr.cli.output import console, say, say_paragraph
from strategies.core.printable_text import printable

GAP = 2
"""Blanks between two columns: one of padding, one of the table's box."""

LABEL_WIDTH = 24
"""A longer label wraps."""


def show_comparison(compared: Comparison, explain: bool = False) -> None:
    """Print a short table and two lines on it, or all columns, verdicts and notes."""
    if explain:
        show_columns(compared.rendered())
        remarks = [*compared.verdicts, *compared.notes]
    else:
        names = ("accuracy", "gain", "verdict", "seeds")
        show_columns(in_short(compared.table, names, compared.against))
        more = len(compared.verdicts) + len(compared.notes)
        remarks = [*compared.remarks, f"--explain prints all columns, and {more} remarks."]
    for remark in remarks:
        say_paragraph(f"- {remark}")


def show_columns(rows: pd.DataFrame) -> None:
    """Print rows with a first column of names, in as many tables as the other columns need."""
    names, cells = rows.iloc[:, :1], rows.iloc[:, 1:]
    start = 0
    while start < cells.shape[1]:
        end = start + 1
        while end < cells.shape[1] and _width(_block(names, cells, start, end + 1)) <= (
            console().width
        ):
            end += 1
        say("")
        _show(_block(names, cells, start, end))
        start = end


def _block(names: pd.DataFrame, cells: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    return pd.concat([names, cells.iloc[:, start:end]], axis=1)


def _width(text: pd.DataFrame) -> int:
    """Return the characters that a table's lines take."""
    return sum(_column_width(text, n) + GAP for n in range(text.shape[1])) - GAP


def _column_width(text: pd.DataFrame, position: int) -> int:
    """Return what the cells of a column take, and the longest word of its heading."""
    words = str(text.columns[position]).split()
    cells = max((len(cell) for cell in text.iloc[:, position]), default=0)
    if position == 0:
        cells = min(cells, LABEL_WIDTH)
    return max(cells, *map(len, words))


def _show(text: pd.DataFrame) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for position, heading in enumerate(text.columns):
        table.add_column(
            Text(printable(str(heading))),
            justify="right" if position else "left",
            width=_column_width(text, position),
            overflow="fold",
        )
    for row in text.itertuples(index=False):
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)
