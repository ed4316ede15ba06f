"""Tables and numbers of pages, written between comments that name them.

A block holds a table, an inline comment one number or phrase::

    <!-- table: benchmark split=groups method=kt-pfl,sim-pfl columns=method,gain sort=-gain -->
    <!-- end -->

    KT-pFL gains <!--= benchmark split=groups method=kt-pfl gain -->2.5 ± 0.3<!--/--> points.

The first word is a file of ``tables``; ``KEY=VALUE`` and ``KEY!=VALUE`` choose rows, several values
stand between commas. A block has ``columns=`` (at most 6), and may have ``sort=``, ``first=`` and
``pivot=``; an inline comment ends in a column, or in ``count``. Both may have ``:FORMAT`` behind a
column; see `FORMATS`. Gains are written with half of their interval: ``+2.5 ± 0.3``.
"""

import functools
import math
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from fedkd_flwr.analysis.columns import in_bytes

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "results" / "tables"
MOST_ROWS, MOST_COLUMNS = 18, 6
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!--= (.+?) -->).*?(<!--/-->)", re.DOTALL)
OPTIONS = ("columns", "sort", "first", "pivot")


class SelectorError(ValueError):
    """A comment that names no cell; the message has page, comment and reason."""


# ---- How a cell is written -----------------------------------------------------------------

NAMES = ("method", "chosen")
BYTES = ("bytes", "up", "down", "bytes_each")
COUNTS = ("steps", "clients", "trials", "completed")
SHARES = ("alone_worse", "guarded_worse", "kept", "weight")
SIGNED = (
    "gain", "difference", "fmnist", "cifar10", "alone", "guarded", "new_gain", "before", "fresh"
)  # fmt: skip
HEADINGS = {
    "gain": "over local, points",
    "new_gain": "over local, points",
    "gain_steps": "over local with as many steps, points",
    "fmnist": "Fashion-MNIST, points",
    "fmnist_steps": "Fashion-MNIST, as many steps",
    "cifar10": "CIFAR-10, points",
    "cifar10_steps": "CIFAR-10, as many steps",
    "steps": "gradient steps of a client",
    "bytes": "exchanged in a run",
    "p": "p, Holm",
    "theirs": "paper",
    "difference": "difference, points",
    "not_shown": "not shown",
    "verdict_steps": "verdict at as many steps",
    "alone": "method alone, points",
    "guarded": "with a safeguard, points",
    "alone_worse": "shown worse alone",
    "guarded_worse": "shown worse with a safeguard",
}


def number(row: pd.Series, column: str, digits: int = 1) -> str:
    """Return a number as text: its unit and digits depend on the column."""
    value = row[column]
    if isinstance(value, str):
        return f"`{value}`" if column in NAMES else value
    if pd.isna(value):
        return ""
    if column in BYTES:
        return in_bytes(value)
    if column == "p":
        return f"{value:.2g}"
    if column == "theirs":
        return f"{value:.2f}"
    if column in COUNTS:
        return f"{value:,.0f}"
    if f"{column}_low" not in row and float(value).is_integer() and column != "accuracy":
        return f"{value:,.0f}"
    text = f"{value:+z.{digits}f}" if is_signed(column) else f"{value:.{digits}f}"
    return f"{text}%" if column in SHARES else text


def is_signed(column: str) -> bool:
    """Return whether a column has differences."""
    return column.removesuffix("_steps") in SIGNED


def whole(row: pd.Series, column: str) -> str:
    """Return a number with half of its interval, or a range, where the table has both ends."""
    ends = [f"{column}_low", f"{column}_high"]
    if not set(ends) <= set(row.index):
        return number(row, column)
    low, high = row[ends]
    if column in BYTES:
        return " to ".join(dict.fromkeys((in_bytes(low), in_bytes(high))))
    if pd.isna(low):
        return number(row, column)
    return f"{number(row, column)} ± {(high - low) / 2:.1f}"


def interval(row: pd.Series, column: str) -> str:
    """Return the ends of an interval."""
    ends = row[[f"{column}_low", f"{column}_high"]]
    return " to ".join(f"{end:z.1f}" for end in ends)


FORMATS: dict[str, Callable[[pd.Series, str], str]] = {
    "": whole,
    "abs": lambda row, column: whole(row, column).lstrip("+-"),
    "mean": number,
    "low": lambda row, column: f"{row[f'{column}_low']:+z.1f}",
    "high": lambda row, column: f"{row[f'{column}_high']:+z.1f}",
    "interval": interval,
    "2": lambda row, column: f"{row[column]:.2f}",
    "beside": lambda row, column: f"{number(row, column)} / {row['theirs']:.1f}".replace(
        "nan", "-"
    ),
    "sd": lambda row, column: f"{row[column]:.1f} ± {row[f'{column}_sd']:.1f}".removesuffix(
        " ± nan"
    ),
}
"""How a cell can be written. The first is the default."""

AGGREGATES: dict[str, Callable[[pd.DataFrame, str], str]] = {
    "max": lambda rows, column: whole(rows.loc[rows[column].idxmax()], column),
    "min": lambda rows, column: whole(rows.loc[rows[column].idxmin()], column),
    "list": lambda rows, column: ", ".join(dict.fromkeys(_cells(rows, column))),
    "range": lambda rows, column: " to ".join(
        dict.fromkeys(_cells(rows.sort_values(column).iloc[[0, -1]], column))
    ),
    "sum": lambda rows, column: f"{rows[column].sum():,.0f}",
    "unique": lambda rows, column: ", ".join(dict.fromkeys(_cells(rows, column))),
}
"""What an inline comment can say of several rows."""


def _cells(rows: pd.DataFrame, column: str) -> list[str]:
    return [number(row, column) for _, row in rows.iterrows()]


# ---- Which cells ---------------------------------------------------------------------------


@functools.cache
def read_table(name: str) -> pd.DataFrame:
    """Return a table; cells that are empty in the file are NaN."""
    path = TABLES / f"{name}.csv"
    if not path.exists():
        raise SelectorError(f"there is no table {name}")
    text = {"version": str, "commit": str, "settings": str}
    return pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])


def chosen(table: pd.DataFrame, filters: Iterable[str]) -> pd.DataFrame:
    """Return the rows that meet all filters, those of a list of values in its order."""
    for word in filters:
        key, _, value = word.partition("=")
        column = key.removesuffix("!")
        if column not in table:
            raise SelectorError(f"there is no column {column}; there are {', '.join(table)}")
        cells = table[column].map(_as_text)
        values = [value] if (cells == value).any() else value.split(",")
        if unknown := [one for one in values if not (cells == one).any()]:
            raise SelectorError(f"no row has {column}={unknown[0]}")
        table = table[~cells.isin(values)] if key.endswith("!") else table[cells.isin(values)]
    return table


def _as_text(value: object) -> str:
    """Return a cell as a filter names it."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.10g}"
    return str(value)


def table_of(words: str) -> str:
    """Return the Markdown table of a block."""
    name, *others = shlex.split(words)
    options = dict(word.split("=", 1) for word in others if word.split("=")[0] in OPTIONS)
    rows = chosen(read_table(name), [w for w in others if w.split("=")[0] not in OPTIONS])
    if order := options.get("sort"):
        rows = rows.sort_values(order.lstrip("-"), ascending=order[0] != "-", kind="stable")
    rows = rows.head(int(options.get("first", len(rows))))
    named = [column.partition("=") for column in options["columns"].split(",")]
    headings = [
        heading or HEADINGS.get(column, column.partition(":")[0].replace("_", " "))
        for column, _, heading in named
    ]
    columns = [column for column, *_ in named]
    cells = [[written(row, column) for column in columns] for _, row in rows.iterrows()]
    right = [
        not any(isinstance(cell, str) for cell in rows.get(column.partition(":")[0], []))
        for column in columns
    ]
    if "pivot" in options:
        key, _, names = options["pivot"].partition(":")
        headings, cells, right = pivoted(headings, cells, list(rows[key]), names)
    if len(cells) > MOST_ROWS or len(headings) > MOST_COLUMNS:
        raise SelectorError(f"{len(cells)} rows and {len(headings)} columns are too many")
    rule = ["---:" if one else "---" for one in right]
    return "".join(f"| {' | '.join(line)} |\n" for line in [headings, rule, *cells])


def pivoted(
    headings: list[str], cells: list[list[str]], values: list[str], names: str
) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return a table with the last column once for each value, under its name or itself."""
    named = dict(one.split("=", 1) for one in names.split(",")) if names else {}
    places = list(named or dict.fromkeys(values))
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row, value in zip(cells, values, strict=True):
        if found.setdefault(tuple(row[:-1]), {}).setdefault(value, row[-1]) is not row[-1]:
            raise SelectorError(f"{', '.join(row[:-1])} has several rows for {value}")
    lines = [[*key, *(own.get(place, "") for place in places)] for key, own in found.items()]
    keys = headings[:-1]
    right = [False] * len(keys) + [True] * len(places)
    return [*keys, *(named.get(place, place) for place in places)], lines, right


def written(row: pd.Series, word: str) -> str:
    """Return a cell, for a column with or without ``:FORMAT``."""
    column, _, form = word.partition(":")
    if column not in row:
        # A range has its ends alone.
        if f"{column}_low" not in row:
            raise SelectorError(f"there is no column {column}; there are {', '.join(row.index)}")
        row = pd.concat([row, pd.Series({column: row[f"{column}_low"]})])
    if form not in FORMATS:
        raise SelectorError(f"{form} is no format; there are {', '.join(filter(None, FORMATS))}")
    return FORMATS[form](row, column)


def phrase(words: str) -> str:
    """Return what an inline comment says."""
    name, *filters, last = shlex.split(words)
    rows = chosen(read_table(name), filters)
    column, _, form = last.partition(":")
    if column == "count":
        return f"{len(rows):,}"
    if rows.empty:
        raise SelectorError("no row meets all filters")
    if form in AGGREGATES:
        return AGGREGATES[form](rows, column).removeprefix("+")
    if len(rows) != 1:
        raise SelectorError(f"{len(rows)} rows meet all filters")
    return written(rows.iloc[0], last).removeprefix("+").strip("`")


# ---- Pages ---------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Return the pages that have such comments."""
    return [ROOT / "README.md", *sorted((ROOT / "results").glob("*.md"))]


def filled(text: str, page: str = "") -> str:
    """Return a page's text with all tables and phrases written anew.

    Raises
    ------
    SelectorError
        If a comment names no cell.
    """

    def fill(write: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
        def replaced(match: re.Match[str]) -> str:
            before, words, after = match.groups()
            try:
                return f"{before}{write(words)}{after}"
            except (SelectorError, KeyError) as error:
                raise SelectorError(f"{page}: {words}: {error}") from None

        return replaced

    with_tables = BLOCK.sub(fill(lambda words: f"\n{table_of(words)}\n"), text)
    return INLINE.sub(fill(phrase), with_tables)


def outdated() -> list[Path]:
    """Return the pages whose text differs from the tables."""
    return [page for page in pages() if filled(page.read_text(), page.name) != page.read_text()]


def write_pages() -> list[Path]:
    """Write all pages anew, and return those that changed."""
    changed = outdated()
    for page in changed:
        page.write_text(filled(page.read_text(), page.name))
    return changed
