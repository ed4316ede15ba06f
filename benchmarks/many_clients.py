"""Peak memory of 1,000 clients of which 10 take part in a round, with the model `cnn`.

Each method runs in a process of its own. Counted is by how much it grows, from when all clients'
data is there to its peak, beside the sum of what its clients and its server keep for the next
round. It is measured once, since nothing in it depends on how busy the machine is, and needs Linux.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.images import settings_for, write_random_images
from benchmarks.memory import resident
from benchmarks.pairs import Result

METHODS = ("fedavg", "kt-pfl", "fedamp", "fedfomo", "pfedhn")
"""One that keeps a model, one that keeps predictions, two that keep every model, one network."""

CLIENTS, SAMPLES, PUBLIC, ROUNDS = 1000, 20, 200, 5
"""Rounds are few: what a method keeps of a client is there once the client has taken part."""


def measure() -> Iterator[Result]:
    """Measure one method after the other."""
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.many_clients", method]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        grown, clients, server = json.loads(answer)
        yield Result(
            f"{method}, {CLIENTS:,} cnn clients, 10 a round",
            f"clients keep {clients / 1e6:,.0f}, server {server / 1e6:,.0f}",
            grown / 1e6,
            (clients + server) / 1e6,
            grown / (clients + server),
            unit="MB",
        )


def grown_and_kept(method: str) -> tuple[int, int, int]:
    """Return by how many bytes this process grows in a run, what clients and the server keep."""
    # Only the process that is measured loads the engine.
    from fedkd_flwr.client_app import app, train_together
    from fedkd_flwr.clients.memory import all_arrays
    from fedkd_flwr.config import read_config
    from fedkd_flwr.data.clients import load_client
    from fedkd_flwr.engines import InProcessGrid, flower_log_level, resolve_output
    from fedkd_flwr.runs import read_checkpoint
    from fedkd_flwr.server_app import serve

    with TemporaryDirectory() as name:
        folder = Path(name)
        write_random_images(folder, CLIENTS * SAMPLES + PUBLIC)
        settings: dict[str, Any] = {
            "strategy": method,
            "fraction-train": 10 / CLIENTS,
            "num-server-rounds": ROUNDS,
            "evaluate-every": ROUNDS,
            "held-out-size": PUBLIC,
            "public-size": PUBLIC,
            "client-split": "60/20/20",
        }
        configuration = resolve_output(
            read_config(settings_for(folder, "cnn", CLIENTS, **settings)), folder
        )
        for client in range(CLIENTS):
            load_client(configuration.run.data_plan, client)
        grid = InProcessGrid(app, CLIENTS, configuration.flat(), live=True, together=train_together)
        before = resident("VmRSS")
        with flower_log_level(WARNING):
            run = serve(grid, configuration, contexts=lambda: grid.contexts)
        grown = resident("VmHWM") - before
        server = sum(array.nbytes for array in read_checkpoint(run.path).state.values())
    memories = [all_arrays(context) for context in grid.contexts.values()]
    clients = sum(
        array.nbytes
        for memory in memories
        for record in memory.values()
        for array in record.values()
    )
    return grown, clients, server


if __name__ == "__main__":
    print(json.dumps(grown_and_kept(sys.argv[1])))
