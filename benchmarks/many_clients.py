"""Peak memory of 1,000 clients, 10 of which are sampled per round, with the model `cnn`.

Each method runs in its own process. The growth of its memory, from when all clients' data is loaded
to the peak, is compared with the size of the state that its clients and its server keep for the
next round. One measurement suffices, because memory does not depend on the load of the machine.
Requires Linux.
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
from benchmarks.memory import resident_bytes
from benchmarks.pairs import Result

METHODS = ("fedavg", "kt-pfl", "fedamp", "fedfomo", "pfedhn")
"""Methods whose state differs: one model, predictions, all models (twice), a hypernetwork."""

CLIENTS, SAMPLES, PUBLIC, ROUNDS = 1000, 20, 200, 5
"""Few rounds suffice: a client's state is stored as soon as it has taken part."""


def measure() -> Iterator[Result]:
    """Measure each method."""
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.many_clients", method]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        grown, clients, server = json.loads(answer)
        yield Result(
            f"{method}, {CLIENTS:,} cnn clients, 10 a round",
            f"stored state: clients {clients / 1e6:,.0f}, server {server / 1e6:,.0f}",
            grown / 1e6,
            (clients + server) / 1e6,
            grown / (clients + server),
            unit="MB",
        )


def growth_and_stored(method: str) -> tuple[int, int, int]:
    """Return the growth of this process in a run, and the stored bytes of clients and server."""
    # Imported here, so that only the measured process loads the engine.
    from fedkd_flwr.client_app import app, train_together
    from fedkd_flwr.config import read_config
    from fedkd_flwr.data.clients import load_client
    from fedkd_flwr.engines import InProcessGrid, flower_log_level, resolve_output
    from fedkd_flwr.memory import own_context
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
        grid = InProcessGrid(app, CLIENTS, configuration, together=train_together)
        before = resident_bytes("VmRSS")
        with flower_log_level(WARNING):
            run = serve(grid, configuration)
        grown = resident_bytes("VmHWM") - before
        server = sum(array.nbytes for array in read_checkpoint(run.path).state.values())
    memories = [own_context(context).memory.tensors for context in grid.contexts.values()]
    clients = sum(
        array.nbytes
        for memory in memories
        for record in memory.values()
        for array in record.values()
    )
    return grown, clients, server


if __name__ == "__main__":
    print(json.dumps(growth_and_stored(sys.argv[1])))
