"""Idle time of Ray's processes in a round, by the order in which clients start.

Clients sleep instead of training, so only the order and Flower's message overhead are measured.
Two processes serve eight clients, two of which take much longer than the others.
"""

import time
from collections.abc import Iterator
from logging import ERROR

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.superlink.grid import InMemoryGrid

from benchmarks.pairs import REPETITIONS, Pair, Result, seconds, summarize
from fedkd_flwr.engines import flower_log_level
from fedkd_flwr.grids.longest_first import LongestFirstGrid

WORK = (0.9, 0.9, 0.9, 5.0, 0.9, 0.9, 0.9, 5.0)
"""Seconds of each client, similar to ``models = "lenet,lenet,lenet,resnet18"``."""

PROCESSES = 2
"""Clients that are served at the same time."""


def measure() -> Iterator[Result]:
    """Measure the total idle seconds of all processes in one round."""
    pairs: list[Pair] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        assert isinstance(grid, InMemoryGrid)
        while len(list(grid.get_node_ids())) < len(WORK):
            time.sleep(0.1)
        ordered = LongestFirstGrid(grid)
        idle_seconds(ordered)  # the grid records how long each client takes
        pairs.extend((idle_seconds(ordered), idle_seconds(grid)) for _ in range(REPETITIONS))

    with flower_log_level(ERROR):  # hides the warning that `run_simulation` is deprecated
        run_simulation(
            server_app,
            SleepingApp(),
            num_supernodes=len(WORK),
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": PROCESSES, "log_to_driver": False},
            },
        )
    name = "idle processes under Ray, longest first"
    yield summarize(name, "in order of partition-id", pairs, at_most=0.5)


def idle_seconds(grid: Grid) -> float:
    """Run a round and return the total idle seconds of its processes."""
    content = RecordDict({"config": ConfigRecord({})})
    messages = [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]
    return PROCESSES * seconds(lambda: list(grid.send_and_receive(messages))) - sum(WORK)


class SleepingApp(ClientApp):
    """A client app that sleeps, and reports for how long."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Serve a message."""
        work = WORK[int(context.node_config["partition-id"])]
        time.sleep(work)
        content = RecordDict({"info": ConfigRecord({"seconds": work})})
        return Message(content, reply_to=message)
