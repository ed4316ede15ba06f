"""Compare a sweep of four runs one by one with the same sweep two at a time."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from benchmarks.images import settings_for, write_random_images
from benchmarks.pairs import Result, Task, process, seconds, summarize
from benchmarks.rounds import PUBLIC
from benchmarks.starting import FEDKD

CLIENTS, SAMPLES, ROUNDS = 10, 800, 14
"""The size of each run, which takes about half a minute on one core."""

REPETITIONS = 3
"""Number of sweeps of each kind."""


def measure() -> Iterator[Result]:
    """Measure whole commands, including the start of Ray and its processes."""
    with TemporaryDirectory() as folder:
        alone, together = sweeps(Path(folder), 1), sweeps(Path(folder), 2)
        pairs = [(seconds(alone), seconds(together)) for _ in range(REPETITIONS)]
    yield summarize("a sweep of 4 runs, --jobs 1", "--jobs 2", pairs, at_least=1.6)


def sweeps(folder: Path, jobs: int) -> Task:
    """Return a task that runs the sweep into a new folder."""
    file = folder / "sweep.toml"
    if not file.exists():
        write_random_images(folder, CLIENTS * SAMPLES + PUBLIC)
        rounds = {"num-server-rounds": ROUNDS, "held-out-size": PUBLIC}
        base = settings_for(folder, "lenet", CLIENTS, **rounds)
        file.write_text(tomli_w.dumps({"base": base, "grid": {"seed": [0, 1, 2, 3]}}))
    numbers = count()

    def sweep() -> None:
        runs = folder / f"{jobs}-jobs-{next(numbers)}"
        process(FEDKD, "sweep", file, "--jobs", str(jobs), "--output-dir", runs)()

    return sweep
