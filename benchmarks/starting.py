"""Compare the start-up time of processes with that of importing PyTorch.

In a deployment, Flower starts a new process for every message.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pairs import Result, Task, process, time_alternately

FEDKD = Path(sysconfig.get_path("scripts")) / "fedkd"

FIRST_MESSAGE = """
from flwr.app import Context, RecordDict
from fedkd_flwr.client_app import build_client
config = {"models": "lenet", "device": "cpu", "torch-threads": 1, "max-samples": 300}
node = {"partition-id": 0, "trust-server": True}
client = build_client(Context(0, 0, node, RecordDict(), config))
client.fit([], {"names": [], "server-round": 1, "phase": "train"})
"""
"""The first message also imports what a client loads only when it trains."""

NODE = "import flwr.supernode.cli.flwr_clientapp, fedkd_flwr.client_app"
"""In a deployment, Flower's own program is also imported for each message."""


def measure() -> Iterator[Result]:
    """Measure the client app, a client's first message, and two commands that only print."""
    starts: dict[str, tuple[Task, float]] = {
        "import fedkd_flwr.client_app": (python("import fedkd_flwr.client_app"), 1.4),
        "a LeNet client's first message": (python(FIRST_MESSAGE), 1.6),
        "a node's process, up to its app": (python(NODE), 1.9),
        "fedkd --help": (process(FEDKD, "--help"), 0.3),
        "fedkd list": (process(FEDKD, "list"), 0.5),
    }
    for name, (task, at_most) in starts.items():
        yield time_alternately(name, task, "import torch", python("import torch"), at_most)


def python(code: str) -> Task:
    """Return a task that runs Python code in a new process."""
    return process(sys.executable, "-c", code)
