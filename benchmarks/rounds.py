"""Compare a round of KT-pFL in one process with its arithmetic in bare PyTorch.

The time includes everything from one finished round to the next: messages, checks, the server's
step, the clients' state and the run directory. Rounds of 1,000 clients are timed three times, the
others five times.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedkd_flwr
from benchmarks.bare import bare_round
from benchmarks.images import settings_for, write_random_images
from benchmarks.pairs import REPETITIONS, Pair, Result, Task, seconds, summarize

PUBLIC = 200
"""P, the number of public samples: the default of a run."""

UNTIMED = 2
"""Warm-up rounds. The very first round has no teachers."""


def measure() -> Iterator[Result]:
    """Measure a few larger clients, many small clients, and 1,000 small clients."""
    for model, clients, train, test, at_most in (
        ("lenet", 10, 600, 200, 1.05),
        ("mlp", 60, 22, 8, 1.5),
    ):
        bare = bare_round(model, clients, train, test, PUBLIC)
        pairs = round_pairs(model, clients, train + test, bare)
        name = f"a round of {clients} {model} clients, {train} samples each"
        yield summarize(name, "bare PyTorch", pairs, at_most)
    pairs = round_pairs("mlp", 1000, 22 + 8, lambda: time.sleep(1), repetitions=3)
    yield summarize("a round of 1,000 mlp clients, 22 samples each", "one second", pairs, at_most=8)


def measure_large() -> Iterator[Result]:
    """Measure a few large networks in a single round, which takes minutes."""
    bare = bare_round("resnet18", 4, 512, 170, PUBLIC)
    pairs = round_pairs("resnet18", 4, 512 + 170, bare, repetitions=1)
    yield summarize("a round of 4 resnet18 clients, 512 samples each", "bare PyTorch", pairs, 1.03)


def round_pairs(
    model: str, clients: int, samples: int, baseline: Task, repetitions: int = REPETITIONS
) -> list[Pair]:
    """Return the seconds of a run's rounds, each with those of the baseline run right after it.

    Parameters
    ----------
    model : str
        Architecture of every client.
    clients, samples : int
        Number of clients, and of samples per client. A quarter of the samples are for testing.
    baseline : callable
        The task to time after each round.
    repetitions : int
        Number of rounds to time.
    """
    pairs: list[Pair] = []
    round_started_at = 0.0

    def on_round(row: Mapping[str, Any]) -> None:
        nonlocal round_started_at
        pairs.append((time.perf_counter() - round_started_at, seconds(baseline)))
        round_started_at = time.perf_counter()

    with TemporaryDirectory() as folder:
        write_random_images(Path(folder), clients * samples + PUBLIC)
        rounds = {"num-server-rounds": UNTIMED + repetitions, "held-out-size": PUBLIC}
        settings = settings_for(Path(folder), model, clients, **rounds)
        fedkd_flwr.run(settings, output_dir=Path(folder) / "run", on_round=on_round)
    return pairs[UNTIMED:]
