"""How all commands print: lines, tables, and one line for an error.

Texts are printed unchanged: Rich would read ``[grid]`` as markup.
"""

import functools
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from strategies.core.printable_text import printable

if TYPE_CHECKING:
    from rich.console import Console

Part = str | tuple[str, str]
"""A text, or a text and its style."""


def _plain(part: Part) -> Part:
    """Return a part without control characters, which others may have sent or recorded."""
    return printable(part) if isinstance(part, str) else (printable(part[0]), part[1])


@functools.cache
def console() -> "Console":
    """Return the console of standard output."""
    from rich.console import Console  # deferred: --help does not need it

    return Console()


@functools.cache
def errors() -> "Console":
    """Return the console of standard error."""
    from rich.console import Console

    return Console(stderr=True)


def say(*parts: Part, to: "Console | None" = None) -> None:
    """Print one line, by default to standard output."""
    from rich.text import Text

    (to or console()).print(Text.assemble(*map(_plain, parts)), soft_wrap=True, highlight=False)


def say_paragraph(*parts: Part, indent: int = 0) -> None:
    """Print a text, wrapped at the terminal's width."""
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text.assemble(*map(_plain, parts)), (0, 0, 0, indent)), highlight=False)


def echo(text: str) -> None:
    """Print a text of several lines unchanged, such as a table in Markdown."""
    typer.echo(printable(text), nl=False)


def say_beside(lines: Iterable[str]) -> None:
    """Print lines to standard error, since only the result goes to standard output."""
    for line in lines:
        say(line, to=errors())


def say_figures(files: Iterable[Path]) -> None:
    """Print the files of figures as they are written."""
    say_beside(f"Figure: {file}" for file in files)


def show_table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    title: str = "",
    numbers: Collection[str] = (),
) -> None:
    """Print a table; columns whose headings are in `numbers` are right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(printable(title), style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in headings:
        table.add_column(
            Text(printable(heading)), justify="right" if heading in numbers else "left"
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)


def user_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions whose message is a sentence for the user."""
    from fedkd_flwr.config import ConfigError
    from fedkd_flwr.data.registry import DataError
    from fedkd_flwr.runs import RunDirectoryError

    # A run with too few replies and a failed simulation are RuntimeErrors.
    return ConfigError, DataError, RunDirectoryError, RuntimeError


@contextmanager
def one_clear_line(*further: type[Exception]) -> Iterator[None]:
    """Turn an exception that is meant for the user into one line and exit status 1."""
    try:
        yield
    except typer.Exit:  # a RuntimeError too
        raise
    except (*user_errors(), *further) as error:
        say(("Error:", "bold red"), f" {error}", to=errors())
        raise typer.Exit(1) from None
