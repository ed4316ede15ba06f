"""Ten and a hundred thousand clients on one machine: memory, start, and seconds a round.

Each run has its own process. Seconds are those of the processor in one thread, so that other work
on the machine changes them little. Every client has ten random images, and nobody downloads data.
Requires Linux.

``python -m benchmarks.scale METHOD CLIENTS A_ROUND ROUNDS EVALUATED`` measures one run, and prints
JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.memory import resident_bytes
from benchmarks.pairs import Result

METHODS = ("kt-pfl", "perfed-ckt", "fedavg", "fedamp")
"""Methods that are measured with ten thousand clients, 50 a round."""

SAMPLES, PUBLIC = 10, 200

VARIABLE = "FEDKD_BENCHMARK_CLIENTS"
"""Environment variable that tells the measured process for how many clients there are images."""


def random_images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return random images with random classes: ten a client, and the public ones."""
    generator, size = np.random.default_rng(0), int(os.environ[VARIABLE]) * SAMPLES + PUBLIC
    pixels = generator.integers(0, 256, (size, 1, 28, 28), dtype=np.uint8)
    return pixels, generator.integers(0, 10, size)


def measure() -> Iterator[Result]:
    """Measure the memory of several methods, then start and rounds of stateful clients."""
    for method in METHODS:
        found = measured(method, 10_000, 50, 4)
        name = f"{method}, 10,000 mlp clients, 50 a round"
        at_most = 3.0 if method == "kt-pfl" else float("inf")
        yield Result(
            f"{name}: peak memory", "1 GB", found["peak"], 1.0, found["peak"], at_most, unit="GB"
        )
        predictions, evaluation = found["predictions"], found["evaluation"]
        yield Result(
            f"{name}: final evaluation", "its predictions alone", evaluation, predictions,
            evaluation / predictions, 1.2,
        )  # fmt: skip
    few, many = (measured("kt-pfl", clients, 100, 20, 500) for clients in (1_000, 100_000))
    name, others = "kt-pfl, 100,000 mlp clients, 100 a round", "1,000 clients"
    yield Result(f"{name}: a round", others, many["round"], few["round"],
                 many["round"] / few["round"], 1.3)  # fmt: skip
    yield Result(f"{name}: start", others, many["start"], few["start"],
                 many["start"] / few["start"])  # fmt: skip
    yield Result(f"{name}: peak memory", others, many["peak"], few["peak"],
                 many["peak"] / few["peak"], unit="GB")  # fmt: skip


def measured(
    method: str, clients: int, a_round: int, rounds: int, evaluated: int = 0
) -> dict[str, float]:
    """Return the figures of a run in a process of its own; see `figures_of`."""
    words = (method, clients, a_round, rounds, evaluated)
    command = [sys.executable, "-m", "benchmarks.scale", *map(str, words)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def figures_of(
    method: str, clients: int, a_round: int, rounds: int, evaluated: int = 0
) -> dict[str, float]:
    """Run a method in this process.

    Parameters
    ----------
    method : str
        The method.
    clients, a_round, rounds : int
        N, the clients sampled in a round, and the number of rounds.
    evaluated : int
        Clients of the evaluation after the last round; 0 for all.

    Returns
    -------
    dict of str to float
        ``peak`` memory in GB; in seconds ``start``, up to the first message of training, the
        median ``round`` from the second to the last but one, the final ``evaluation``, and its
        ``predictions`` alone.
    """
    # Imported here, so that only the measured process loads the engine.
    import fedkd_flwr

    os.environ[VARIABLE] = str(clients)
    settings = {
        "strategy": method, "dataset": "benchmarks.scale:random_images", "partition": "iid",
        "models": "mlp", "num-clients": clients, "fraction-train": a_round / clients,
        "num-server-rounds": rounds, "evaluate-every": rounds, "evaluate-clients": evaluated,
        "held-out-size": PUBLIC, "public-size": PUBLIC, "client-split": "60/20/20",
        "device": "cpu", "torch-threads": 1,
    }  # fmt: skip
    ends: list[float] = []

    def on_round(row: Mapping[str, Any]) -> None:
        ends.append(time.process_time())

    started_at = time.process_time()
    with TemporaryDirectory() as folder:
        fedkd_flwr.run(settings, output_dir=Path(folder) / "run", on_round=on_round)
    peak = resident_bytes("VmHWM") / 1e9
    lengths = np.diff([started_at, *ends])
    a_usual_one = float(np.median(lengths[1:-1]))
    return {
        "peak": peak,
        "start": float(lengths[0]) - a_usual_one,
        "round": a_usual_one,
        "evaluation": float(lengths[-1]) - a_usual_one,
        "predictions": prediction_seconds(settings, evaluated or clients),
    }


def prediction_seconds(settings: dict[str, Any], clients: int) -> float:
    """Return the seconds of what an evaluation cannot do without, for the first clients.

    These are each client's weights, copied into one model, and its predictions on its test and
    validation images.
    """
    import torch

    from fedkd_flwr.config import read_config
    from fedkd_flwr.data.clients import load_client
    from fedkd_flwr.models.build import build_model
    from fedkd_flwr.models.vectors import copied_state

    run = read_config(settings).run
    model = build_model("mlp", run.data.image_shape, run.data.num_classes, run.models.search_space)
    weights = copied_state(model)
    parts = [load_client(run.data_plan, n) for n in range(clients)]
    started_at = time.process_time()
    with torch.inference_mode():
        for data in parts:
            model.load_state_dict(weights)
            for images, labels in (
                (data.test_images, data.test_labels),
                (data.validation_images, data.validation_labels),
            ):
                logits = model(images)
                _ = float(torch.nn.functional.cross_entropy(logits, labels))
                _ = int((logits.argmax(dim=1) == labels).sum())
    return time.process_time() - started_at


if __name__ == "__main__":
    words = sys.argv[2:]
    print(json.dumps(figures_of(sys.argv[1], *map(int, words))))
