"""Compare a round in one process with its arithmetic in bare PyTorch.

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
from benchmarks.bare import bare_round, bare_training, settings_for
from benchmarks.pairs import REPETITIONS, Pair, Result, Task, seconds, summarize

PUBLIC = 200
"""P, the number of public samples: the default of a run."""

TRAINED_MODELS = {"fedavg": 1, "fedprox": 1, "scaffold": 1, "ditto": 2, "fedproto": 1}
"""Methods that are compared with training alone, and the models that a client trains."""

UNTIMED = 2
"""Warm-up rounds. The very first round has no teachers."""


def measure() -> Iterator[Result]:
    """Measure KT-pFL with larger, small and very many clients, then other methods."""
    for model, clients, train, test, at_most, repetitions in (
        ("lenet", 10, 600, 200, 0.9, REPETITIONS),
        ("mlp", 60, 22, 8, 0.4, REPETITIONS),
        ("mlp", 1_000, 22, 8, 0.4, 3),
    ):
        bare = bare_round(model, clients, train, test, PUBLIC)
        pairs = round_pairs("kt-pfl", model, clients, train + test, bare, repetitions)
        name = f"a round of {clients:,} {model} clients, {train} samples each"
        yield summarize(name, "bare PyTorch", pairs, at_most)
    for method, models in TRAINED_MODELS.items():
        bare = bare_training("mlp", 60, 22, 8, models)
        pairs = round_pairs(method, "mlp", 60, 22 + 8, bare)
        yield summarize(f"{method}, 60 mlp clients", "bare training", pairs, at_most=0.5)


def measure_large() -> Iterator[Result]:
    """Measure a few large networks in a single round, which takes minutes."""
    bare = bare_round("resnet18", 4, 512, 170, PUBLIC)
    pairs = round_pairs("kt-pfl", "resnet18", 4, 512 + 170, bare, repetitions=1)
    yield summarize("a round of 4 resnet18 clients, 512 samples each", "bare PyTorch", pairs, 1.03)


def round_pairs(
    method: str,
    model: str,
    clients: int,
    samples: int,
    baseline: Task,
    repetitions: int = REPETITIONS,
) -> list[Pair]:
    """Return the seconds of a run's rounds, each with those of the baseline run right after it.

    A quarter of each client's samples are for testing.
    """
    pairs: list[Pair] = []
    round_started_at = 0.0

    def on_round(row: Mapping[str, Any]) -> None:
        nonlocal round_started_at
        pairs.append((time.perf_counter() - round_started_at, seconds(baseline)))
        round_started_at = time.perf_counter()

    with TemporaryDirectory() as folder:
        rounds = {"num-server-rounds": UNTIMED + repetitions, "held-out-size": PUBLIC}
        images = clients * samples + PUBLIC
        settings = settings_for(model, clients, images, strategy=method, **rounds)
        fedkd_flwr.run(settings, output_dir=Path(folder) / "run", on_round=on_round)
    return pairs[UNTIMED:]
