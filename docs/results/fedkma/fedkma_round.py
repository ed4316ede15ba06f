"""Cost of one FedKMA round at the paper's size: server time and memory, client time.

    PYTHONPATH=docs/results python docs/results/fedkma/fedkma_round.py [--clients 10]

The results are written to `measurements.jsonl`.

The server's part is one aggregation of the models of all clients: decoding and checking the
replies, H and M, and mixing by M. The client's part is one alpha step and one omega step on a
batch of 16 images of CIFAR-10's size. All on one thread.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from measurements import write_measurements

from fedkd_flwr.clients.supernets import split_parameters
from fedkd_flwr.models.build import build_model
from fedkd_flwr.models.vectors import model_vectors
from fedkd_flwr.training.loop import train_on
from fedkd_flwr.training.losses import cross_entropy
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
"""Limit of the server's memory in gigabytes, including Python and PyTorch."""


class WithoutClients(FedKMA):
    """FedKMA without clients: the rows of M are computed here."""

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
    """Record the CPU time of a part; other processes do not count."""
    started_at = time.process_time()
    yield
    seconds[name] = time.process_time() - started_at


def peak_memory() -> float:
    """Return the peak memory of this process in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def measure_server(num_clients: int) -> dict[str, float]:
    """Aggregate the models of all clients once, and return CPU seconds by part."""
    model = model_vectors(build_model("darts", SHAPE, CLASSES))
    plan = RunPlan(num_clients=num_clients, num_server_rounds=1, num_classes=CLASSES)
    strategy = WithoutClients(plan, FedKMASettings())
    strategy.seconds = seconds = {}
    strategy.state = strategy.begin(model)
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
        strategy.state = strategy.aggregate(1, replies)
    return seconds


def measure_client(repetitions: int = 3) -> dict[str, float]:
    """Take alpha and omega steps, and return CPU milliseconds per sample."""
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
        train_on(model, cross_entropy, optimizer, [batch])
        started_at = time.process_time()
        for _ in range(repetitions):
            train_on(model, cross_entropy, optimizer, [batch])
        seconds = (time.process_time() - started_at) / repetitions
        milliseconds[name] = 1000 * seconds / BATCH
    return milliseconds


def measure(clients: int) -> list[dict[str, Any]]:
    """Return the costs of the parts of a round: CPU seconds, gigabytes, milliseconds per sample."""
    torch.set_num_threads(1)
    before = peak_memory()
    server = measure_server(clients)
    peak = peak_memory()
    _, omegas = split_parameters(build_model("darts", SHAPE, CLASSES))
    client = measure_client()
    parts = [
        ("server: decode and check the replies", round(server["decode and check"], 4), "s"),
        ("server: H and M", round(server["H and M"], 4), "s"),
        ("server: mix by M, with H and M", round(server["aggregate"], 4), "s"),
        ("server: peak memory", round(peak, 3), "GB"),
        ("server: memory before", round(before, 3), "GB"),
        ("client: alpha step, batch 16, a sample", round(client["alpha step"], 1), "ms"),
        ("client: omega step, batch 16, a sample", round(client["omega step"], 1), "ms"),
    ]
    common = {
        "date": date.today().isoformat(),
        "weights": sum(weights.numel() for weights in omegas),
    }
    if peak >= MEMORY_LIMIT:
        raise SystemExit(f"The server used {peak:.2f} GB; the limit is {MEMORY_LIMIT:g} GB.")
    return [{"part": part, "value": value, "unit": unit, **common} for part, value, unit in parts]


def main() -> None:
    """Measure, write the results and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10)
    found = measure(parser.parse_args().clients)
    write_measurements("fedkma/round", found)
    for line in found:
        print(f"{line['part']}: {line['value']} {line['unit']}")


if __name__ == "__main__":
    main()
