"""Use a limited time on a GPU: ``python -m benchmarks gpu --minutes 25 --data-root FOLDER``.

The parts are ordered by their value. First come rows of the table of ratios: cohorts against
clients one by one, and bf16 against float32. Then come runs at the papers' size: Table 1 of KT-pFL
and of PerFed-CKT. A later call continues: it measures only rows that the file lacks, and
``fedkd sweep`` continues stopped runs.

``--smoke`` does all of it at a tiny size, on the digits and on any machine.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.cohort import Clients
from benchmarks.pairs import Result, time_alternately
from benchmarks.records import Record, current_conditions, read_records, save_record
from benchmarks.starting import FEDKD
from benchmarks.table import table_of
from fedkd_flwr.training.loop import computing_in

SAMPLES, REPETITIONS = 200, 3
"""Training samples of a client, and how often each task is timed."""

SWEEPS = Path(__file__).parents[1] / "results" / "sweeps"

SMOKE_SETTINGS = {
    "dataset": "digits",
    "partition": "iid",
    "client-split": "40/20/40",
    "public-dataset": "held-out",
    "public-size": "50",
    "num-clients": "8",
    "num-server-rounds": "1",
    "evaluate-every": "1",
    "torch-threads": "1",
}
"""What ``--smoke`` changes in all sweeps."""


@dataclass(frozen=True)
class Experiment:
    """A sweep at a paper's size.

    Attributes
    ----------
    sweep : str
        Name in ``results/sweeps``.
    seeds : int
        Its seeds, 0 to `seeds` - 1. All runs of a seed are done before the next.
    smoke_settings : dict of str to str
        What ``--smoke`` changes, besides `SMOKE_SETTINGS`.
    smoke_runs : tuple of str
        Settings of the runs that ``--smoke`` does.
    """

    sweep: str
    seeds: int
    smoke_settings: dict[str, str]
    smoke_runs: tuple[str, ...]


EXPERIMENTS = (
    Experiment(
        "kt-pfl-table-1-paper-size",
        5,
        {"models": "mlp,lenet,cnn,shufflenetv2", "local-epochs": "1"},
        ("strategy=kt-pfl", "kt-pfl.temperature=10.0"),
    ),
    Experiment(
        "perfed-ckt-table-1",
        3,
        {"models": "mlp", "local-iterations": "2", "fraction-train": "0.5"},
        ("strategy=perfed-ckt", "perfed-ckt.clusters=3"),
    ),
)
"""The papers' experiments, the most valuable one first."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    minutes: Annotated[float, typer.Option(help="Start nothing new after this time.")] = 25.0,
    file: Annotated[
        Path, typer.Option("--json", dir_okay=False, help="File of the rows; continued.")
    ] = Path("gpu.json"),
    runs: Annotated[
        Path, typer.Option("--output-dir", file_okay=False, help="Folder of the runs; continued.")
    ] = Path("runs/gpu"),
    data_root: Annotated[
        str, typer.Option(help="Folder of the data sets by hub id; by default they are downloaded.")
    ] = "",
    device: Annotated[str, typer.Option(help="Device of all parts.")] = "cuda",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Do everything at a tiny size, on the CPU.")
    ] = False,
) -> None:
    """Measure as much as the time allows, the most valuable parts first."""
    device = "cpu" if smoke else device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("this machine has no GPU that PyTorch can use; try --smoke")
    deadline = time.monotonic() + 60 * minutes
    rows = tiny_rows() if smoke else full_rows(device)
    measured = measure_rows(rows, file, deadline)
    Console(width=120).print(table_of(measured, str(current_conditions(["gpu"]))))
    for experiment in EXPERIMENTS:
        finished = run_experiment(experiment, runs, data_root, device, smoke, deadline)
        typer.echo(f"{experiment.sweep}: {'complete' if finished else 'call again to continue'}")


Row = tuple[str, Callable[[], Result]]
"""The name of a row of the table, and what measures it."""


def full_rows(device: str) -> Iterator[Row]:
    """Return the rows at full size, the most valuable first."""
    for model in ("lenet", "cnn", "resnet18"):
        yield cohort_row(model, 20, SAMPLES, device, REPETITIONS, at_least=10)
    for model in ("resnet18", "vgg11"):
        yield precision_row(model, SAMPLES, device, REPETITIONS)
    # Three clients with a ResNet-18 fill a cohort, so more of them show nothing new.
    for model in ("lenet", "cnn"):
        yield cohort_row(model, 100, SAMPLES, device, REPETITIONS, at_least=30)


def tiny_rows() -> Iterator[Row]:
    """Return each kind of row at a tiny size on the CPU, without a target."""
    yield cohort_row("lenet", 2, 16, "cpu", 1)
    yield precision_row("cnn", 16, "cpu", 1)


def cohort_row(
    model: str, clients: int, samples: int, device: str, repetitions: int, at_least: float = 0.0
) -> Row:
    """Return the row that compares clients one by one with a cohort."""
    name = f"{clients} {model} clients on {device}, one by one"

    def measure() -> Result:
        trained = Clients.build(model, clients, samples, device)
        return time_alternately(
            name,
            partial(finish, trained.train_one_by_one, device),
            "trained as a cohort",
            partial(finish, trained.train_in_cohorts, device),
            at_least=at_least,
            repetitions=repetitions,
        )

    return name, measure


def precision_row(model: str, samples: int, device: str, repetitions: int) -> Row:
    """Return the row that compares a client in float32 with the same client in bf16."""
    name = f"a {model} client on {device}, float32"

    def measure() -> Result:
        trained = Clients.build(model, 1, samples, device)

        def in_bf16() -> None:
            with computing_in("bf16", device):
                trained.train_one_by_one()

        return time_alternately(
            name,
            partial(finish, trained.train_one_by_one, device),
            "bf16",
            partial(finish, in_bf16, device),
            repetitions=repetitions,
        )

    return name, measure


def finish(task: Callable[[], None], device: str) -> None:
    """Run a task and wait until the device has finished it."""
    task()
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure_rows(rows: Iterator[Row], file: Path, deadline: float) -> list[Result]:
    """Measure the rows that a file lacks until the deadline, and return all rows of the file."""
    stored = {record.result.name for record in read_records(file)}
    conditions = current_conditions(["gpu"])
    for name, measure in rows:
        if name not in stored and time.monotonic() < deadline:
            save_record(Record(measure(), conditions), file)
    return [record.result for record in read_records(file)]


def run_experiment(
    experiment: Experiment,
    runs: Path,
    data_root: str,
    device: str,
    smoke: bool,
    deadline: float,
) -> bool:
    """Do the runs of an experiment, or continue them, until the deadline.

    Returns
    -------
    bool
        Whether all are finished.

    Raises
    ------
    subprocess.CalledProcessError
        If a run fails.
    """
    settings = {"device": device}
    if data_root:
        settings["data-root"] = data_root
    if smoke:
        settings |= SMOKE_SETTINGS | experiment.smoke_settings
    selected = experiment.smoke_runs if smoke else ()
    for seed in range(1 if smoke else experiment.seeds):
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            return False
        command: list[str | Path] = [
            *(
                FEDKD,
                "sweep",
                SWEEPS / f"{experiment.sweep}.toml",
                "--output-dir",
                runs / experiment.sweep,
            ),
            *options("-c", [f"{key}={value}" for key, value in settings.items()]),
            *options("--only", [f"seed={seed}", *selected]),
        ]
        try:
            subprocess.run(command, check=True, timeout=seconds_left)
        except subprocess.TimeoutExpired:
            return False
    return True


def options(name: str, values: Sequence[str]) -> list[str]:
    """Return an option once for each value."""
    return [word for value in values for word in (name, value)]
