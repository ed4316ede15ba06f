"""Peak memory of a run with 1,000 clients, compared with the size of the clients' state.

A client's state is its model and its momentum buffers. The run has its own process. Its memory is
counted from when it has loaded all clients' data and served a few clients, so that PyTorch and the
images do not count. One measurement suffices, because memory does not depend on the load of the
machine. Requires Linux.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.images import settings_for, write_random_images
from benchmarks.pairs import Result

if TYPE_CHECKING:
    from fedkd_flwr.engines import InProcessGrid

CLIENTS, SAMPLES, PUBLIC = 1000, 30, 200

FEW = 20
"""Clients that are served before the measurement, so that all code is loaded."""

ROUNDS = 3
"""Memory grows until each client has replaced its state at least once."""


def measure() -> Iterator[Result]:
    """Measure KT-pFL with perceptrons."""
    command = [sys.executable, "-m", "benchmarks.memory"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    grown, kept = json.loads(answer)
    yield Result(
        f"peak memory of {CLIENTS:,} mlp clients",
        "their stored state",
        grown / 1e6,
        kept / 1e6,
        grown / kept,
        unit="MB",
    )


def growth_and_stored() -> tuple[int, int]:
    """Return the growth of this process in a run, and the stored bytes of its clients."""
    # Imported here, so that only the measured process loads the engine.
    from fedkd_flwr.config import read_config
    from fedkd_flwr.data.clients import load_client
    from fedkd_flwr.memory import own_context

    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_random_images(root, CLIENTS * SAMPLES + PUBLIC)
        rounds = {"num-server-rounds": ROUNDS, "held-out-size": PUBLIC, "public-size": PUBLIC}
        few = settings_for(root, "mlp", FEW, **rounds, **{"max-samples": FEW * SAMPLES})
        serve_run(few, root / "few")
        settings = settings_for(root, "mlp", CLIENTS, **rounds)
        plan = read_config(settings).run.data_plan
        for client in range(CLIENTS):
            load_client(plan, client)
        before = resident_bytes("VmRSS")
        grid = serve_run(settings, root / "many")
        grown = resident_bytes("VmHWM") - before
    memories = [own_context(context).memory.tensors for context in grid.contexts.values()]
    kept = sum(
        array.nbytes
        for memory in memories
        for record in memory.values()
        for array in record.values()
    )
    return grown, kept


def serve_run(settings: Mapping[str, Any], folder: Path) -> "InProcessGrid":
    """Run into a folder, and return the grid, which holds the clients' state."""
    from fedkd_flwr.client_app import app, train_together
    from fedkd_flwr.config import read_config
    from fedkd_flwr.engines import InProcessGrid, flower_log_level, resolve_output
    from fedkd_flwr.server_app import serve

    configuration = resolve_output(read_config(dict(settings)), folder)
    clients = configuration.run.plan.num_clients
    grid = InProcessGrid(app, clients, configuration, together=train_together)
    with flower_log_level(WARNING):
        serve(grid, configuration)
    return grid


def resident_bytes(field: str) -> int:
    """Return the resident memory of this process in bytes: ``VmRSS`` now, ``VmHWM`` at its peak.

    The peak of the `resource` module also includes the parent process.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s*(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(growth_and_stored()))
