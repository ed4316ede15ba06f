"""A round of KT-pFL in one process, beside its arithmetic in bare PyTorch.

All is timed that a run does from one finished round to the next: messages, checks, the server's
step, the clients' memory and the run directory. Rounds of 1,000 clients are timed three times,
the others five times.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedkd_flwr
from benchmarks.bare import bare_round
from benchmarks.images import settings_for, write_random_images
from benchmarks.pairs import REPETITIONS, Pair, Result, Task, seconds, summarized

PUBLIC = 200
"""P, public samples: the default of a run."""

UNTIMED = 2
"""Rounds before the first that is timed; the first of all has no teachers."""


def measure() -> Iterator[Result]:
    """Measure few larger clients, many small ones, and very many."""
    for model, clients, train, test, at_most in (
        ("lenet", 10, 600, 200, 1.05),
        ("mlp", 60, 22, 8, 1.5),
    ):
        bare = bare_round(model, clients, train, test, PUBLIC)
        pairs = round_pairs(model, clients, train + test, bare)
        name = f"a round of {clients} {model} clients, {train} samples each"
        yield summarized(name, "bare PyTorch", pairs, at_most)
    pairs = round_pairs("mlp", 1000, 22 + 8, lambda: time.sleep(1), repetitions=3)
    yield summarized("a round of 1,000 mlp clients, 22 samples each", "a second", pairs, at_most=8)


def measure_large() -> Iterator[Result]:
    """Measure a few large networks, in a single round: each takes a minute or more."""
    bare = bare_round("resnet18", 4, 512, 170, PUBLIC)
    pairs = round_pairs("resnet18", 4, 512 + 170, bare, repetitions=1)
    yield summarized("a round of 4 resnet18 clients, 512 samples each", "bare PyTorch", pairs, 1.03)


def round_pairs(
    model: str, clients: int, samples: int, baseline: Task, repetitions: int = REPETITIONS
) -> list[Pair]:
    """Return the seconds of a run's rounds, each with those of a baseline right after it.

    Parameters
    ----------
    model : str
        Architecture of every client.
    clients, samples : int
        How many there are, and the samples of each, a quarter of which it tests on.
    baseline : callable
        What is timed after each round.
    repetitions : int
        Rounds that are timed.
    """
    pairs: list[Pair] = []
    round_began_at = 0.0

    def on_round(row: Mapping[str, Any]) -> None:
        nonlocal round_began_at
        pairs.append((time.perf_counter() - round_began_at, seconds(baseline)))
        round_began_at = time.perf_counter()

    with TemporaryDirectory() as folder:
        write_random_images(Path(folder), clients * samples + PUBLIC)
        rounds = {"num-server-rounds": UNTIMED + repetitions, "held-out-size": PUBLIC}
        settings = settings_for(Path(folder), model, clients, **rounds)
        fedkd_flwr.run(settings, output_dir=Path(folder) / "run", on_round=on_round)
    return pairs[UNTIMED:]
