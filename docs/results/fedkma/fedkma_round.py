"""What one round of FedKMA costs at the paper's size: server time and memory, client time.

    python docs/results/fedkma/fedkma_round.py [--clients 10] [--threads 1]

The server's part is one aggregation of the models of all clients: decoding and checking the
replies, H and M, and mixing by M. The client's part is one alpha step and one omega step on a
batch of 16 images of CIFAR-10's size.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from flwr.app import Array
from rich.console import Console
from rich.table import Table

from fedkd_flwr.clients.fedkma import split_parameters, step
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.vectors import model_vectors
from strategies.core.plan import RunPlan
from strategies.core.replies import Reply, checked_arrays
from strategies.fedkma import (
    CLASS_FLAGS,
    CLASS_LOGITS,
    FedKMA,
    FedKMASettings,
    irrelevancy,
    sharing_row,
)

SHAPE, CLASSES, BATCH = (3, 32, 32), 10, 16
MEMORY_LIMIT = 4.0
"""Gigabytes that the server's part must stay under, Python and PyTorch included."""


class WithoutClients(FedKMA):
    """FedKMA whose clients answer at once: the rows of M are computed here."""

    seconds: dict[str, float]

    def sharing_block(self, server_round, replies):  # type: ignore[no-untyped-def]
        """Return M as the clients would."""
        logits = np.stack([reply.arrays[CLASS_LOGITS] for reply in replies.values()])
        flags = np.stack([reply.arrays[CLASS_FLAGS] for reply in replies.values()])
        with measured(self.seconds, "H and M"):
            labels = np.full(CLASSES, 1 / CLASSES)
            rows = irrelevancy(logits, flags, self.settings.similarity_weight)
            return np.stack([sharing_row(row, labels) for row in rows])


@contextmanager
def measured(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note the processor time that a part takes: other programs do not count."""
    started_at = time.process_time()
    yield
    seconds[name] = time.process_time() - started_at


def peak_memory() -> float:
    """Return the most memory that this process ever held, in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def measure_server(num_clients: int) -> dict[str, float]:
    """Aggregate the models of so many clients once; return processor seconds by part."""
    model = model_vectors(build_model("darts", SHAPE, CLASSES))
    plan = RunPlan(num_clients=num_clients, num_server_rounds=1, num_classes=CLASSES)
    strategy = WithoutClients(plan, FedKMASettings())
    strategy.seconds = seconds = {}
    strategy.begin(model)
    received = {}
    for n in range(num_clients):
        generator = np.random.default_rng(n)
        arrays = {
            kind: generator.standard_normal(vector.shape, dtype=np.float32)
            for kind, vector in model.items()
        }
        arrays[CLASS_LOGITS] = generator.standard_normal((CLASSES, CLASSES), dtype=np.float32)
        arrays[CLASS_FLAGS] = np.ones(CLASSES, dtype=np.float32)
        received[n] = {name: Array(values) for name, values in arrays.items()}
    with measured(seconds, "decode and check"):
        replies = {
            n: Reply(n, checked_arrays(arrays, strategy.expected_arrays(1, n)), {})
            for n, arrays in received.items()
        }
    with measured(seconds, "aggregate"):
        strategy.aggregate(1, replies)
    return seconds


def measure_client(repetitions: int = 3) -> dict[str, float]:
    """Take alpha and omega steps; return processor milliseconds a sample."""
    torch.manual_seed(0)
    model = build_model("darts", SHAPE, CLASSES)
    batch = torch.randn(BATCH, *SHAPE), torch.arange(BATCH) % CLASSES
    alphas, omegas = split_parameters(model)
    optimizers = {
        "alpha step": torch.optim.Adam(alphas, 3e-4),
        "omega step": torch.optim.SGD(omegas, 0.01, momentum=0.9),
    }

    milliseconds = {}
    for name, optimizer in optimizers.items():
        step(model, batch, optimizer)
        started_at = time.process_time()
        for _ in range(repetitions):
            step(model, batch, optimizer)
        seconds = (time.process_time() - started_at) / repetitions
        milliseconds[name] = 1000 * seconds / BATCH
    return milliseconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    before = peak_memory()
    table = Table(
        "part", "processor time", title=f"FedKMA, {options.clients} clients, DARTS 16/8/4"
    )
    for name, seconds in measure_server(options.clients).items():
        table.add_row(f"server: {name}", f"{seconds:.3f} s")
    peak = peak_memory()
    table.add_row("server: peak memory", f"{peak:.2f} GB ({before:.2f} GB before)")
    for name, milliseconds in measure_client().items():
        table.add_row(f"client: {name}", f"{milliseconds:.1f} ms a sample")
    Console().print(table)
    if peak >= MEMORY_LIMIT:
        raise SystemExit(f"the server's part took {peak:.2f} GB, allowed are {MEMORY_LIMIT:g}")


if __name__ == "__main__":
    main()
