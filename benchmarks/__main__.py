"""``python -m benchmarks [NAME ...]``: run benchmarks, print one table of ratios.

Ends with status 1 if a target is missed.
"""

import math
import os
import platform
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Annotated

import typer
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from benchmarks.pairs import Result

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

COLUMNS: tuple[tuple[str, JustifyMethod], ...] = (
    ("measured", "left"),
    ("median", "right"),
    ("beside", "left"),
    ("median", "right"),
    ("ratio", "right"),
    ("target", "left"),
)
"""Headings of the table, and where their cells stand."""

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
) -> None:
    """Run benchmarks by name; those that do not take long if none is given."""
    names = names or [name for name in BENCHMARKS if everything or name not in LONG]
    console = Console(width=120)  # rows stay whole where the table goes into a file
    title = machine()
    with console.status("measuring"):
        results = [result for measure in chosen(names) for result in measure()]
    console.print(table_of(results, title))
    missed = [result for result in results if result.falls_short]
    for result in missed:
        typer.echo(f"falls short: {result.name}, {result.ratio:.2f} where {result.target} is due")
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


def machine() -> str:
    """Say what the figures were taken on, and how busy it was before."""
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}, "
        f"one thread, Python {platform.python_version()}, PyTorch {version('torch')}"
    )


def table_of(results: Iterable[Result], title: str) -> Table:
    """Lay out results, one a row."""
    table = Table(title=title, box=box.MARKDOWN)
    for heading, justify in COLUMNS:
        table.add_column(heading, justify=justify)
    for result in results:
        table.add_row(
            result.name,
            f"{three_digits(result.measured)} {result.unit}",
            result.baseline_name,
            f"{three_digits(result.baseline)} {result.unit}",
            f"{result.ratio:.2f}",
            result.target,
        )
    return table


def three_digits(value: float) -> str:
    """Write a positive number to three digits, with all that stand before the point."""
    decimals = 2 - math.floor(math.log10(value))
    return f"{value:,.{max(decimals, 0)}f}"


if __name__ == "__main__":
    os.environ |= dict.fromkeys(THREADS, "1")  # read when the libraries are loaded, on first use
    os.environ["FEDKD_CACHE"] = "off"  # random images are nothing to keep
    app()
