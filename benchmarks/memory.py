"""Peak memory of a run with 1,000 clients, beside the sum of what the clients keep.

A client keeps its model and its momenta. Counted is by how much a process of its own grows, from
when it has met all clients' data and served a few of them to its peak, so that neither PyTorch
nor the images count. It is measured once, since nothing in it depends on how busy the machine is,
and needs Linux.
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
"""Clients that are served before, so that the code they need is loaded."""

ROUNDS = 3
"""Memory grows until each client has replaced what it keeps at least once."""


def measure() -> Iterator[Result]:
    """Measure perceptrons under KT-pFL."""
    command = [sys.executable, "-m", "benchmarks.memory"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    grown, kept = json.loads(answer)
    yield Result(
        f"peak memory of {CLIENTS:,} mlp clients",
        "what they keep",
        grown / 1e6,
        kept / 1e6,
        grown / kept,
        at_most=1.3,
        unit="MB",
    )


def grown_and_kept() -> tuple[int, int]:
    """Return by how many bytes this process grows in a run, and how many its clients keep."""
    # Only the process that is measured loads the engine.
    from fedkd_flwr.clients.memory import all_arrays
    from fedkd_flwr.config import read_config
    from fedkd_flwr.data.clients import load_client

    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_random_images(root, CLIENTS * SAMPLES + PUBLIC)
        rounds = {"num-server-rounds": ROUNDS, "held-out-size": PUBLIC, "public-size": PUBLIC}
        few = settings_for(root, "mlp", FEW, **rounds, **{"max-samples": FEW * SAMPLES})
        served(few, root / "few")
        settings = settings_for(root, "mlp", CLIENTS, **rounds)
        plan = read_config(settings).run.data_plan
        for client in range(CLIENTS):
            load_client(plan, client)
        before = resident("VmRSS")
        grid = served(settings, root / "many")
        grown = resident("VmHWM") - before
    memories = [all_arrays(context) for context in grid.contexts.values()]
    kept = sum(
        array.nbytes
        for memory in memories
        for record in memory.values()
        for array in record.values()
    )
    return grown, kept


def served(settings: Mapping[str, Any], folder: Path) -> "InProcessGrid":
    """Serve a run into a folder, and return the grid with what its clients keep."""
    from fedkd_flwr.client_app import app, train_together
    from fedkd_flwr.config import read_config
    from fedkd_flwr.engines import InProcessGrid, flower_log_level, resolve_output
    from fedkd_flwr.server_app import serve

    configuration = resolve_output(read_config(dict(settings)), folder)
    clients, flat = configuration.run.plan.num_clients, configuration.flat()
    grid = InProcessGrid(app, clients, flat, live=True, together=train_together)
    with flower_log_level(WARNING):
        serve(grid, configuration, contexts=lambda: grid.contexts)
    return grid


def resident(field: str) -> int:
    """Return the bytes of this process in memory, ``VmRSS`` now or ``VmHWM`` at its peak.

    What `resource` calls the peak includes that of the process which started this one.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s*(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(grown_and_kept()))
