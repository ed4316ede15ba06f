"""Tables and numbers of pages, written between comments that name them.

A block holds a table, an inline comment one number or phrase::

    <!-- table: benchmark split=groups method=kt-pfl,sim-pfl columns=method,gain -->
    <!-- end -->

    KT-pFL gains <!--= benchmark split=groups method=kt-pfl gain -->2.5 ± 0.3<!--/--> points.

The first word is a file of ``tables``; ``KEY=VALUE`` and ``KEY!=VALUE`` choose rows, several values
stand between commas. A block has ``columns=COLUMN,COLUMN=HEADING,…``, and may have
``pivot=COLUMN:VALUE=HEADING,…``: the last column once for each value. An inline comment ends in a
column or in ``count``. A column may have one of `FORMATS`, as ``gain:abs``. A number with an
interval is written with half of it: ``+2.5 ± 0.3``.
"""

import functools
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from fedkd_flwr.analysis.columns import in_bytes

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "results" / "tables"
MOST_ROWS, MOST_COLUMNS = 18, 6
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!--= (.+?) -->).*?(<!--/-->)", re.DOTALL)

BYTES = ("bytes", "up", "down")
SHARES = (
    "alone_loses_2", "guarded_loses_2", "alone_loses_5", "guarded_loses_5", "guarded_worse", "kept",
    "weight",
)  # fmt: skip
FRACTIONAL = (*SHARES, "accuracy", "trained", "best", "worst", "theirs", "last", "best_test")
SIGNED = (
    "gain", "fmnist", "cifar10", "difference", "alone", "guarded", "change",
)  # fmt: skip
HEADINGS = {
    "gain": "over local, points",
    "bytes": "exchanged in a run",
    "theirs": "paper",
    "difference": "difference, points",
    "trained": "after local training",
    "best": "best client",
    "worst": "worst client",
    "share": "users, %",
    "alone": "method alone, points",
    "guarded": "with a safeguard, points",
    "alone_loses_2": "lose over 2 points alone",
    "alone_loses_5": "lose over 5 points alone",
    "guarded_loses_2": "over 2 with a safeguard",
    "guarded_loses_5": "over 5 with a safeguard",
}
"""Headings of columns whose name does not say enough."""


class SelectorError(ValueError):
    """A comment that names no cell; the message has page, comment and reason."""


# ---- How a cell is written -----------------------------------------------------------------


def number(row: pd.Series, column: str) -> str:
    """Return a cell as text: unit and digits depend on the column."""
    value = row[column]
    if isinstance(value, str):
        return f"`{value}`" if column == "method" else value
    if pd.isna(value):
        return ""
    if column in BYTES:
        return in_bytes(value)
    if f"{column}_low" not in row and float(value).is_integer() and column not in FRACTIONAL:
        return f"{value:,.0f}"
    sign, unit = "+" * (column in SIGNED), "%" * (column in SHARES)
    return f"{value:{sign}z.{2 if column == 'theirs' else 1}f}{unit}"


def whole(row: pd.Series, column: str) -> str:
    """Return a cell with half of its interval, or a range, where the table has both ends."""
    low, high = (row.get(f"{column}_{end}", np.nan) for end in ("low", "high"))
    if np.isnan(low):
        return number(row, column)
    if column in BYTES:
        return " to ".join(dict.fromkeys((in_bytes(low), in_bytes(high))))
    text = number(row, column)
    return f"{text.rstrip('%')} ± {(high - low) / 2:.1f}{'%' * text.endswith('%')}"


FORMATS: dict[str, Callable[[pd.Series, str], str]] = {
    "": whole,
    "abs": lambda row, column: whole(row, column).lstrip("+-"),
    "mean": number,
    "2": lambda row, column: f"{row[column]:.2f}",
    "beside": lambda row, column: f"{row[column]:.1f} / {row['theirs']:.1f}".replace("nan", "-"),
}
"""Without sign, without interval, with two digits, beside a paper's number."""


def written(row: pd.Series, word: str) -> str:
    """Return a cell, for a column with or without ``:FORMAT``."""
    column, _, form = word.partition(":")
    if column not in row and f"{column}_low" not in row:  # a range has its ends alone
        raise SelectorError(f"there is no column {column}; there are {', '.join(row.index)}")
    if form not in FORMATS:
        raise SelectorError(f"{form} is no format; there are {', '.join(filter(None, FORMATS))}")
    return FORMATS[form](row, column)


# ---- Which cells ---------------------------------------------------------------------------


@functools.cache
def read_table(name: str, folder: Path | None = None) -> pd.DataFrame:
    """Return a table; cells that are empty in the file are NaN."""
    path = (folder or TABLES) / f"{name}.csv"
    if not path.exists():
        raise SelectorError(f"there is no table {name}")
    return pd.read_csv(path, dtype={"settings": str}, keep_default_na=False, na_values=[""])


def chosen(name: str, filters: Iterable[str]) -> pd.DataFrame:
    """Return the rows of a table that meet all filters."""
    table = read_table(name)
    for word in filters:
        key, _, value = word.partition("=")
        column = key.removesuffix("!")
        if column not in table:
            raise SelectorError(
                f"there is no column {column}; there are {', '.join(map(str, table))}"
            )
        # Integers with gaps are read as floats.
        cells = table[column].map(lambda one: f"{one:g}" if isinstance(one, float) else str(one))
        values = [value] if value in set(cells) else value.split(",")
        if unknown := [one for one in values if one not in set(cells)]:
            raise SelectorError(f"no row has {column}={unknown[0]}")
        table = table[cells.isin(values) != key.endswith("!")]
    return table


def table_of(words: str) -> str:
    """Return the Markdown table of a block."""
    name, *others = shlex.split(words)
    options = dict(word.split("=", 1) for word in others if word.startswith(("columns=", "pivot=")))
    rows = chosen(name, [word for word in others if word.split("=")[0] not in options])
    cells, rule = pd.DataFrame(index=rows.index), []
    for part in options["columns"].split(","):
        word, _, heading = part.partition("=")
        column = word.partition(":")[0]
        heading = heading or HEADINGS.get(column, column.replace("_", " "))
        cells[heading] = [written(row, word) for _, row in rows.iterrows()]
        is_text = column in rows and rows[column].map(lambda cell: isinstance(cell, str)).any()
        rule.append("---" if is_text else "---:")
    if "pivot" in options:
        column, _, names = options["pivot"].partition(":")
        named = dict(one.split("=", 1) for one in names.split(",")) if names else {}
        values = rows[column].astype(str)
        cells = pivoted(cells, values, named or {one: one for one in values})
        rule = [*rule[:-1], *["---:"] * (cells.shape[1] - len(rule) + 1)]
    if len(cells) > MOST_ROWS or cells.shape[1] > MOST_COLUMNS:
        raise SelectorError(f"{len(cells)} rows and {cells.shape[1]} columns are too many")
    lines = [map(str, cells), rule, *cells.to_numpy().tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pivoted(cells: pd.DataFrame, values: pd.Series, names: dict[str, str]) -> pd.DataFrame:
    """Return cells with the last column once for each value, under its name."""
    *keys, last = map(str, cells)
    if cells[keys].assign(value=values).duplicated().any():
        raise SelectorError("a cell has several rows")
    wide = cells.groupby([*keys, values], sort=False)[last].first().unstack(sort=False)
    return wide.reindex(columns=list(names)).fillna("").rename(columns=names).reset_index()


def phrase(words: str) -> str:
    """Return what an inline comment says."""
    name, *filters, word = shlex.split(words)
    rows = chosen(name, filters)
    if word == "count":
        return f"{len(rows):,}"
    if len(rows) != 1:
        raise SelectorError(f"{len(rows)} rows meet all filters")
    return written(rows.iloc[0], word).removeprefix("+").strip("`")


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
