"""Published work beside Flower's own simulation: ``python -m benchmarks published``.

Logistic regression on MNIST: 1,000 clients, 10 a round, 100 rounds, batches of 10. FLUTE published
its times and Flower's for this work. Here this project and Flower have a process each, for the same
clients and samples: every round trains 10 clients, and every 20th tests the model on all 1,000.
Images are decoded before, so that neither time has it.

``python -m benchmarks.published ENGINE FOLDER ROUNDS`` runs one of them, and prints JSON.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from benchmarks.bare import CLASSES, SHAPE
from benchmarks.pairs import Result, summarize, table_of
from benchmarks.records import Record, current_conditions, save_record
from fedkd_flwr.config import read_config
from fedkd_flwr.data.clients import load_client

CLIENTS, A_ROUND, ROUNDS, TEST_EVERY = 1_000, 10, 100, 20
LEARNING_RATE, BATCH_SIZE, WEIGHT_DECAY = 0.03, 10, 0.001

PARTS = ("train_images", "train_labels", "test_images", "test_labels")
"""Arrays of all clients, one file each: the client is the first dimension."""

ENGINES = ("fedkd", "flower")

Figures = dict[str, float]
"""Seconds of the ``whole`` process and of ``a_round``, and the ``accuracy`` over all clients."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def logistic_regression(shape: Sequence[int] = SHAPE, classes: int = CLASSES) -> nn.Module:
    """Return the model: one linear layer on the pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@app.command()
def main(
    data_root: Annotated[
        str, typer.Option(help="Folder of the data sets by hub id; by default they are downloaded.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=TEST_EVERY, help="Rounds of each run.")] = ROUNDS,
    file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Write the rows to this file."),
    ] = None,
) -> None:
    """Run Flower's simulation, then this project, and print a table of ratios."""
    conditions = current_conditions(["published"])
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_clients(settings_for(data_root), CLIENTS, folder)
        theirs, ours = (measured(engine, folder, rounds) for engine in ("flower", "fedkd"))
    results = rows(theirs, ours, rounds)
    Console(width=120).print(table_of(results, str(conditions)))
    typer.echo(f"accuracy of Flower {theirs['accuracy']:.1%}, here {ours['accuracy']:.1%}")
    if file:
        for result in results:
            save_record(Record(result, conditions), file)


def rows(theirs: Figures, ours: Figures, rounds: int) -> list[Result]:
    """Return the rows of the table, of Flower's run and this project's."""
    name = "logistic regression, 1,000 clients, 10 a round, Flower's simulation"
    whole, a_round = ([(theirs[part], ours[part])] for part in ("whole", "a_round"))
    return [
        summarize(f"{name}: {rounds} rounds", "this project", whole, at_least=20.0),
        summarize(f"{name}: a round of training", "this project", a_round),
    ]


def settings_for(data_root: str) -> dict[str, Any]:
    """Return the settings of the work; 60 images of a client are for training, 10 for testing."""
    return {
        "strategy": "fedavg",
        "dataset": "mnist",
        "data-root": data_root,
        "partition": "iid",
        "client-split": "86/0/14",
        "public-dataset": "none",
        "models": "benchmarks.published:logistic_regression",
        "num-clients": CLIENTS,
        "fraction-train": A_ROUND / CLIENTS,
        "evaluate-every": TEST_EVERY,
        "local-epochs": 1,
        "batch-size": BATCH_SIZE,
        "learning-rate": LEARNING_RATE,
        "momentum": 0.0,
        "weight-decay": WEIGHT_DECAY,
        "cohort": "on",
        "device": "cpu",
        "torch-threads": 1,
    }


def write_clients(settings: Mapping[str, Any], clients: int, folder: Path) -> None:
    """Write the settings, and the samples of all clients as arrays that processes can map."""
    (folder / "settings.json").write_text(json.dumps(dict(settings)))
    plan = read_config(dict(settings)).run.data_plan
    loaded = [load_client(plan, client) for client in range(clients)]
    for part in PARTS:
        samples: list[Tensor] = [getattr(client, part) for client in loaded]
        np.save(folder / f"{part}.npy", torch.stack(samples).numpy())


def measured(engine: str, folder: Path, rounds: int) -> Figures:
    """Return the figures of a run in a new process, with the seconds of the ``whole`` process."""
    command = [sys.executable, "-m", "benchmarks.published", engine, str(folder), str(rounds)]
    started_at = time.perf_counter()
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    whole = time.perf_counter() - started_at
    return {"whole": whole, **json.loads(answer.splitlines()[-1])}


def run_here(folder: Path, rounds: int) -> Figures:
    """Run this project in this process; see `figures`."""
    import fedkd_flwr

    ends: list[float] = []
    settings = json.loads((folder / "settings.json").read_text())
    run = fedkd_flwr.run(
        {**settings, "num-server-rounds": rounds},
        output_dir=folder / f"run-{time.time_ns()}",
        on_round=lambda row: ends.append(time.perf_counter()),
    )
    assert run.summary is not None
    return figures(ends, run.summary["last_round"]["accuracy_mean"])


def figures(ends: Sequence[float], accuracy: float) -> Figures:
    """Return the median seconds of a round, of when each ended, and the last tested accuracy."""
    return {"a_round": float(np.median(np.diff(ends))), "accuracy": accuracy}


if __name__ == "__main__":
    from benchmarks.flower_simulation import run_flower

    runs = dict(zip(ENGINES, (run_here, run_flower), strict=True))
    print(json.dumps(runs[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
