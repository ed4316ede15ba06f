"""Run benchmarks and print a table of ratios: ``python -m benchmarks [NAME ...] [--json FILE]``.

The exit status is 1 if a target is missed. ``published`` is a command with options of its own.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.pairs import Result, table_of
from benchmarks.records import Record, current_conditions, read_records, save_record

BENCHMARKS = {
    "starting": "benchmarks.starting:measure",
    "rounds": "benchmarks.rounds:measure",
    "cohort": "benchmarks.cohort:measure",
    "large-network": "benchmarks.rounds:measure_large",
    "gpu": "benchmarks.gpu:measure",
}
"""The function of each benchmark, by name; imported when it runs."""

NAMED = ("large-network", "gpu")
"""Benchmarks that take minutes or need a GPU. They run only if named."""

COMMANDS = {"published": "benchmarks.published:app"}
"""Commands with options of their own, for real data; imported when they run."""

Measure = Callable[[], Iterable[Result]]
"""A benchmark: yields one result per row of the table."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads of PyTorch and NumPy."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=f"Run benchmarks: {', '.join(BENCHMARKS)}.")
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Benchmarks to run. Default: all except {', '.join(NAMED)}."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            dir_okay=False,
            help="Write each row to this file once it is measured; replaces the row of that name.",
        ),
    ] = None,
) -> None:
    """Run the named benchmarks, or all others if none is named."""
    names = names or [name for name in BENCHMARKS if name not in NAMED]
    measures = select_benchmarks(names)
    if file:
        check_file(file)
    conditions = current_conditions(names)
    results = []
    console = Console(width=120)  # wide enough for whole rows when redirected to a file
    with console.status("measuring"):
        for result in (result for measure in measures for result in measure()):
            results.append(result)
            if file:
                save_record(Record(result, conditions), file)
    console.print(table_of(results, str(conditions)))
    missed = [result for result in results if result.misses_target]
    for result in missed:
        typer.echo(f"target missed: {result.miss}")
    raise typer.Exit(bool(missed))


def select_benchmarks(names: Collection[str]) -> list[Measure]:
    """Return the named benchmarks.

    Raises `typer.BadParameter` if a name is unknown.
    """
    unknown = sorted({*names} - BENCHMARKS.keys())
    if unknown:
        raise typer.BadParameter(
            f"there is no benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}"
        )
    return [resolve_name(BENCHMARKS[name]) for name in names]


def check_file(file: Path) -> None:
    """Check that rows can be written to a file, before time is spent on measuring.

    Raises `typer.BadParameter` if its folder does not exist, or it holds anything but rows of
    benchmarks.
    """
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}")
    try:
        read_records(file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    os.environ |= dict.fromkeys(THREADS, "1")  # read when the libraries are first imported
    for name in {*sys.argv[1:2]} & COMMANDS.keys():
        resolve_name(COMMANDS[name])(sys.argv[2:], prog_name=f"python -m benchmarks {name}")
    app()
