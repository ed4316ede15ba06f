"""Tables and numbers of pages, written between comments that name them.

A block holds a table, an inline comment one number or phrase::

    <!-- table: benchmark split=groups method=kt-pfl,sim-pfl columns=method,gain sort=-gain -->
    <!-- end -->

    KT-pFL gains <!--= benchmark split=groups method=kt-pfl gain -->2.5 ± 0.3<!--/--> points.

The first word is a file of ``tables``; ``KEY=VALUE`` and ``KEY!=VALUE`` choose rows, several values
stand between commas. A block has ``columns=COLUMN,COLUMN=HEADING,…``, and may have ``sort=``,
``first=`` and ``pivot=COLUMN:VALUE=HEADING,…``: the last column once for each value. An inline
comment ends in a column or in ``count``. A column may have a format, ``gain:abs``; see `FORMATS`
and `AGGREGATES`. A number with an interval is written with half of it: ``+2.5 ± 0.3``.
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

BYTES = ("bytes", "up", "down", "bytes_each")
WHOLE = ("steps", "clients", "trials", "completed")
SHARES = ("alone_worse", "guarded_worse", "kept", "weight")
OVER_LOCAL = ("gain", "fmnist", "cifar10", "new_gain", "before", "fresh")
SIGNED = (*OVER_LOCAL, "difference", "alone", "guarded")
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
    "verdict_steps": "verdict at as many steps",
    "alone": "method alone, points",
    "guarded": "with a safeguard, points",
    "alone_worse": "shown worse alone",
    "guarded_worse": "shown worse with a safeguard",
}
"""Headings of columns whose name does not say enough."""


class SelectorError(ValueError):
    """A comment that names no cell; the message has page, comment and reason."""


# ---- How a cell is written -----------------------------------------------------------------


def number(row: pd.Series, column: str) -> str:
    """Return a number as text: its unit and digits depend on the column."""
    value = row[column]
    if isinstance(value, str):
        return f"`{value}`" if column == "method" else value
    if pd.isna(value):
        return ""
    if column in BYTES:
        return in_bytes(value)
    if column == "p":
        return f"{value:.2g}"
    is_count = f"{column}_low" not in row and float(value).is_integer()
    if column in WHOLE or (is_count and column not in (*SHARES, "accuracy", "theirs", "rank")):
        return f"{value:,.0f}"
    sign = "+" if column.removesuffix("_steps") in SIGNED else ""
    return f"{value:{sign}z.{2 if column == 'theirs' else 1}f}" + "%" * (column in SHARES)


def whole(row: pd.Series, column: str) -> str:
    """Return a number with half of its interval, or a range, where the table has both ends."""
    low, high = (row.get(f"{column}_{end}", math.nan) for end in ("low", "high"))
    if pd.isna(low):
        return number(row, column)
    if column in BYTES:
        return " to ".join(dict.fromkeys((in_bytes(low), in_bytes(high))))
    text = number(row, column)
    return f"{text.rstrip('%')} ± {(high - low) / 2:.1f}" + "%" * text.endswith("%")


def _with_spread(row: pd.Series, column: str) -> str:
    spread = row[f"{column}_sd"]
    return f"{row[column]:.1f}" + ("" if pd.isna(spread) else f" ± {spread:.1f}")


FORMATS: dict[str, Callable[[pd.Series, str], str]] = {
    "": whole,
    "abs": lambda row, column: whole(row, column).lstrip("+-"),
    "mean": number,
    "sd": _with_spread,
    "2": lambda row, column: f"{row[column]:.2f}",
    "interval": lambda row, column: f"{row[f'{column}_low']:z.1f} to {row[f'{column}_high']:z.1f}",
    "beside": lambda row, column: f"{row[column]:.1f} / {row['theirs']:.1f}".replace("nan", "-"),
}
"""How a cell can be written: by default, without sign, without interval, with spread, …."""

AGGREGATES: dict[str, Callable[[pd.DataFrame, str], str]] = {
    "max": lambda rows, column: whole(rows.sort_values(column).iloc[-1], column),
    "min": lambda rows, column: whole(rows.sort_values(column).iloc[0], column),
    "list": lambda rows, column: _each_once(rows, column, ", "),
    "range": lambda rows, column: _each_once(
        rows.sort_values(column).iloc[[0, -1]], column, " to "
    ),
}
"""What an inline comment can say of several rows."""


def _each_once(rows: pd.DataFrame, column: str, between: str) -> str:
    return between.join(dict.fromkeys(number(row, column) for _, row in rows.iterrows()))


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
    """Return the rows that meet all filters."""
    for word in filters:
        key, _, value = word.partition("=")
        column = key.removesuffix("!")
        if column not in table:
            raise SelectorError(
                f"there is no column {column}; there are {', '.join(map(str, table))}"
            )
        cells = table[column].map(_as_text)
        values = [value] if (cells == value).any() else value.split(",")
        if unknown := [one for one in values if not (cells == one).any()]:
            raise SelectorError(f"no row has {column}={unknown[0]}")
        table = table[cells.isin(values) != key.endswith("!")]
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
    named = [column.partition("=")[::2] for column in options["columns"].split(",")]
    plain = [column.partition(":")[0] for column, _ in named]
    headings = [
        heading or HEADINGS.get(one, one.replace("_", " "))
        for one, (_, heading) in zip(plain, named, strict=True)
    ]
    cells = [[written(row, column) for column, _ in named] for _, row in rows.iterrows()]
    texts = [any(isinstance(cell, str) for cell in rows.get(one, [])) for one in plain]
    rule = ["---" if is_text else "---:" for is_text in texts]
    if "pivot" in options:
        column, _, names = options["pivot"].partition(":")
        headings, cells = pivoted(headings, cells, list(rows[column]), names)
        rule = [*["---"] * (len(rule) - 1), *["---:"] * (len(headings) - len(rule) + 1)]
    if len(cells) > MOST_ROWS or len(headings) > MOST_COLUMNS:
        raise SelectorError(f"{len(cells)} rows and {len(headings)} columns are too many")
    return "".join(f"| {' | '.join(line)} |\n" for line in [headings, rule, *cells])


def pivoted(
    headings: list[str], cells: list[list[str]], values: list[str], names: str
) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells with the last column once for each value, under its name."""
    named = dict(one.split("=", 1) for one in names.split(",")) if names else {v: v for v in values}
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row, value in zip(cells, values, strict=True):
        if found.setdefault(tuple(row[:-1]), {}).setdefault(value, row[-1]) is not row[-1]:
            raise SelectorError(f"{', '.join(row[:-1])} has several rows for {value}")
    lines = [[*key, *(own.get(value, "") for value in named)] for key, own in found.items()]
    return [*headings[:-1], *named.values()], lines


def written(row: pd.Series, word: str) -> str:
    """Return a cell, for a column with or without ``:FORMAT``."""
    column, _, form = word.partition(":")
    if column not in row and f"{column}_low" not in row:  # a range has its ends alone
        raise SelectorError(f"there is no column {column}; there are {', '.join(row.index)}")
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
    if form in AGGREGATES and len(rows):
        return AGGREGATES[form](rows, column).removeprefix("+")
    if len(rows) != 1:
        raise SelectorError(f"{len(rows)} rows meet all filters")
    return written(rows.iloc[0], last).removeprefix("+").strip("`")


# ---- Pages ---------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Return the pages that have such comments."""
    return [ROOT / "README.md", *sorted((ROOT / "results").glob("*.md"))]


def filled(text: str, page: str = "") -> str:
    """Return a page's text with all tables and phrases written anew, or raise `SelectorError`."""

    def fill(match: re.Match[str], write: Callable[[str], str]) -> str:
        before, words, after = match.groups()
        try:
            return f"{before}{write(words)}{after}"
        except (SelectorError, KeyError) as error:
            raise SelectorError(f"{page}: {words}: {error}") from None

    text = BLOCK.sub(lambda match: fill(match, lambda words: f"\n{table_of(words)}\n"), text)
    return INLINE.sub(lambda match: fill(match, phrase), text)


def outdated() -> list[Path]:
    """Return the pages whose text differs from the tables."""
    return [page for page in pages() if filled(page.read_text(), page.name) != page.read_text()]


def write_pages() -> list[Path]:
    """Write all pages anew, and return those that changed."""
    changed = outdated()
    for page in changed:
        page.write_text(filled(page.read_text(), page.name))
    return changed
