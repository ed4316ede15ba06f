"""Two things measured in turns: what every benchmark is made of."""

import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

REPETITIONS = 5
"""How often each of the two is measured."""

Task = Callable[[], object]
"""Something whose time is taken."""

Pair = tuple[float, float]
"""What was measured in one repetition, and beside what."""


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes
    ----------
    name, baseline_name : str
        What is measured, and beside what.
    measured, baseline : float
        The medians.
    ratio : float
        The measured in multiples of the baseline.
    at_most, at_least : float
        The ratios that are good enough; infinity and 0 where none is asked for.
    unit : str
        Of both medians.
    """

    name: str
    baseline_name: str
    measured: float
    baseline: float
    ratio: float
    at_most: float = math.inf
    at_least: float = 0.0
    unit: str = "s"

    @property
    def falls_short(self) -> bool:
        """Whether the target is missed."""
        return not self.at_least <= self.ratio <= self.at_most

    @property
    def target(self) -> str:
        """The target in words; empty where there is none."""
        if math.isfinite(self.at_most):
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least else ""

    @property
    def shortfall(self) -> str:
        """What is reached beside what is asked for, of a result that falls short."""
        return f"{self.name}, {self.ratio:.2f} where {self.target} is due"


def in_turns(
    name: str,
    task: Task,
    baseline_name: str,
    baseline: Task,
    at_most: float = math.inf,
    at_least: float = 0.0,
) -> Result:
    """Time two tasks in turns, after each has run once untimed.

    Parameters
    ----------
    name, baseline_name : str
        What the tasks are called.
    task, baseline : callable
        What is timed, and what beside.
    at_most, at_least : float
        The ratios that are good enough.
    """
    task()
    baseline()
    pairs = [(seconds(task), seconds(baseline)) for _ in range(REPETITIONS)]
    return summarized(name, baseline_name, pairs, at_most, at_least)


def summarized(
    name: str,
    baseline_name: str,
    pairs: Sequence[Pair],
    at_most: float = math.inf,
    at_least: float = 0.0,
) -> Result:
    """Summarize repetitions by their medians.

    Each repetition gives a ratio, and their median is the result: a machine that grows busy in
    the meantime slows down both sides of a ratio.
    """
    measured, beside = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    return Result(name, baseline_name, measured, beside, ratio, at_most, at_least)


def seconds(task: Task) -> float:
    """Return how long a task takes."""
    started_at = time.perf_counter()
    task()
    return time.perf_counter() - started_at


def process(*command: str | Path) -> Task:
    """Return a task that runs a command as a process of its own, with byte code kept.

    The task raises `subprocess.CalledProcessError` if the command fails.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
