"""``python -m benchmarks [NAME ...] [--json FILE]``: run benchmarks, print one table of ratios.

Ends with status 1 if a target is missed.
"""

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.pairs import Result
from benchmarks.records import Record, circumstances_of, keep, read_records
from benchmarks.table import table_of

BENCHMARKS = {
    "starting": "benchmarks.starting:measure",
    "decoding": "benchmarks.decoding:measure",
    "rounds": "benchmarks.rounds:measure",
    "large-network": "benchmarks.rounds:measure_large",
    "flower-example": "benchmarks.flower_example:measure",
    "server": "benchmarks.server:measure",
    "large-server": "benchmarks.server:measure_large",
    "wire": "benchmarks.wire:measure",
    "memory": "benchmarks.memory:measure",
    "many-clients": "benchmarks.many_clients:measure",
    "cohort": "benchmarks.cohort:measure",
    "messages": "benchmarks.simulation:measure_messages",
    "order": "benchmarks.order:measure",
    "simulation": "benchmarks.simulation:measure_long_rounds",
    "sweeps": "benchmarks.sweeps:measure",
}
"""Where each benchmark is, by name; imported on use."""

LONG = ("large-network", "large-server", "order", "simulation", "sweeps")
"""Those that take several minutes each, and are done only if they are asked for."""

Measure = Callable[[], Iterable[Result]]
"""A benchmark: measures, and yields one result after the other."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables from which PyTorch and NumPy learn how many threads they may have."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=f"Run benchmarks: {', '.join(BENCHMARKS)}.")
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Which to run; all but {', '.join(LONG)} if none."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Run all, a quarter of an hour longer on an idle machine.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            dir_okay=False,
            help="Keep each row here as soon as it is measured, in place of the one of its name.",
        ),
    ] = None,
) -> None:
    """Run benchmarks by name; those that do not take long if none is given."""
    names = names or [name for name in BENCHMARKS if everything or name not in LONG]
    measures = chosen(names)
    if file:
        check_file(file)
    circumstances = circumstances_of(names)
    results = []
    console = Console(width=120)  # rows stay whole where the table goes into a file
    with console.status("measuring"):
        for result in (result for measure in measures for result in measure()):
            results.append(result)
            if file:
                keep(Record(result, circumstances), file)
    console.print(table_of(results, str(circumstances)))
    missed = [result for result in results if result.falls_short]
    for result in missed:
        typer.echo(f"falls short: {result.shortfall}")
    raise typer.Exit(bool(missed))


def chosen(names: Collection[str]) -> list[Measure]:
    """Return benchmarks by name.

    Raises
    ------
    typer.BadParameter
        If there is none of that name.
    """
    unknown = sorted({*names} - BENCHMARKS.keys())
    if unknown:
        raise typer.BadParameter(
            f"there is no benchmark {', '.join(unknown)}; allowed are {', '.join(BENCHMARKS)}"
        )
    return [resolve_name(BENCHMARKS[name]) for name in names]


def check_file(file: Path) -> None:
    """See, before minutes are spent, that a file can take rows.

    Raises
    ------
    typer.BadParameter
        If its folder is not there, or it holds something else.
    """
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}")
    try:
        read_records(file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    os.environ |= dict.fromkeys(THREADS, "1")  # read when the libraries are loaded, on first use
    os.environ["FEDKD_CACHE"] = "off"  # random images are nothing to keep
    app()
