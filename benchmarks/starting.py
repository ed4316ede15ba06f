"""What it costs to start: whole processes beside one that imports PyTorch.

Flower serves every message to a real node in a fresh process, and nobody likes to wait for help.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from benchmarks.pairs import Result, Task, in_turns, process

FEDKD = Path(sysconfig.get_path("scripts")) / "fedkd"

FIRST_MESSAGE = """
from flwr.app import Context, RecordDict
from fedkd_flwr.client_app import build_client
config = {"models": "lenet", "device": "cpu", "torch-threads": 1, "max-samples": 300}
client = build_client(Context(0, 0, {"partition-id": 0}, RecordDict(), config))
client.fit([], {"names": [], "server-round": 1, "phase": "train"})
"""
"""Imports alone would not show what a client loads once it has something to do."""

NODE = "import flwr.supernode.cli.flwr_clientapp, fedkd_flwr.client_app"
"""Flower's own program comes on top wherever a message is served to a node."""


def measure() -> Iterator[Result]:
    """Measure the client app, a client's first message, and two commands that only tell."""
    starts: dict[str, tuple[Task, float]] = {
        "import fedkd_flwr.client_app": (python("import fedkd_flwr.client_app"), 1.4),
        "a LeNet client's first message": (python(FIRST_MESSAGE), 1.6),
        "a node's process, up to its app": (python(NODE), 1.9),
        "fedkd --help": (process(FEDKD, "--help"), 0.3),
        "fedkd list": (process(FEDKD, "list"), 0.5),
    }
    for name, (task, at_most) in starts.items():
        yield in_turns(name, task, "import torch", python("import torch"), at_most)


def python(code: str) -> Task:
    """Return a task that runs code in a fresh process."""
    return process(sys.executable, "-c", code)
