"""What a GPU makes of cohorts and of bf16: ``python -m benchmarks gpu``."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import typer

from benchmarks.cohort import Clients
from benchmarks.pairs import Result, time_alternately
from fedkd_flwr.training.loop import computing_in

SAMPLES, REPETITIONS = 200, 3
"""Training samples of a client, and how often each task is timed."""

COHORTS = (
    (20, "lenet", 10.0), (20, "cnn", 10.0), (20, "resnet18", 10.0),
    (100, "lenet", 30.0), (100, "cnn", 30.0),
)  # fmt: skip
"""Clients, their model, and the least ratio of one by one to a cohort.

Three clients with a ResNet-18 fill a cohort, so more of them show nothing new.
"""

IN_BF16 = ("resnet18", "vgg11")
"""Models that are trained in bf16 and in float32."""


def measure() -> Iterator[Result]:
    """Measure cohorts, then one client in bf16; refuse a machine without a GPU."""
    if not torch.cuda.is_available():
        raise typer.BadParameter("this machine has no GPU that PyTorch can use")
    for clients, model, at_least in COHORTS:
        yield time_cohort(model, clients, "cuda", at_least)
    for model in IN_BF16:
        yield time_bf16(model, "cuda")


def time_cohort(model: str, clients: int, device: str, at_least: float) -> Result:
    """Compare clients one by one with a cohort."""
    trained = Clients.build(model, clients, SAMPLES, device)
    return time_alternately(
        f"{clients} {model} clients on {device}, one by one",
        partial(finish, trained.train_one_by_one, device),
        "trained as a cohort",
        partial(finish, trained.train_in_cohorts, device),
        at_least=at_least,
        repetitions=REPETITIONS,
    )


def time_bf16(model: str, device: str) -> Result:
    """Compare a client in float32 with the same client in bf16."""
    trained = Clients.build(model, 1, SAMPLES, device)

    def in_bf16() -> None:
        with computing_in("bf16", device):
            trained.train_one_by_one()

    return time_alternately(
        f"a {model} client on {device}, float32",
        partial(finish, trained.train_one_by_one, device),
        "bf16",
        partial(finish, in_bf16, device),
        repetitions=REPETITIONS,
    )


def finish(task: Callable[[], None], device: str) -> None:
    """Run a task and wait until the device has finished it."""
    task()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
