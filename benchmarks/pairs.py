"""Time two tasks alternately, the basis of every benchmark, and show the ratios."""

import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import JustifyMethod
from rich.table import Table

REPETITIONS = 5
"""How often each task is timed."""

Task = Callable[[], object]
"""A task to time."""

Pair = tuple[float, float]
"""The seconds of a task and of its baseline in one repetition."""


@dataclass(frozen=True)
class Result:
    """A row of the table.

    The ratio is the measured median divided by the baseline's. Limits that are None are none.
    """

    name: str
    baseline_name: str
    measured: float
    baseline: float
    ratio: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "s"

    @property
    def misses_target(self) -> bool:
        """Whether the ratio misses the target."""
        return not (self.at_least or 0) <= self.ratio <= (self.at_most or math.inf)

    @property
    def target(self) -> str:
        """The target in words, or an empty string without a target."""
        if self.at_most:
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least else ""

    @property
    def miss(self) -> str:
        """The ratio and the target, for a result that misses its target."""
        return f"{self.name}: ratio {self.ratio:.2f}, target {self.target}"


def time_alternately(
    name: str,
    task: Task,
    baseline_name: str,
    baseline: Task,
    at_most: float | None = None,
    at_least: float | None = None,
    repetitions: int = REPETITIONS,
) -> Result:
    """Time two tasks alternately, after one untimed run of each.

    `at_most` and `at_least` limit the ratio.
    """
    task()
    baseline()
    pairs = [(seconds(task), seconds(baseline)) for _ in range(repetitions)]
    return summarize(name, baseline_name, pairs, at_most, at_least)


def summarize(
    name: str,
    baseline_name: str,
    pairs: Sequence[Pair],
    at_most: float | None = None,
    at_least: float | None = None,
) -> Result:
    """Summarize repetitions by their medians.

    The result is the median of the repetitions' ratios. A machine that becomes busy slows down
    both tasks of a repetition, and so changes a ratio less than the seconds.
    """
    measured, baseline = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    return Result(name, baseline_name, measured, baseline, ratio, at_most, at_least)


def seconds(task: Task) -> float:
    """Run a task and return its seconds."""
    started_at = time.perf_counter()
    task()
    return time.perf_counter() - started_at


def process(*command: str | Path) -> Task:
    """Return a task that runs a command in a new process that caches byte code.

    The task raises `subprocess.CalledProcessError` if the command fails.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


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
