"""A round of KT-pFL in Flower's Ray simulation, beside the same round in one process.

Both runs are there at once, each in a process of its own, and play their rounds in turns. Ray
serves one client after the other, as one process does, so that a ratio shows what its messages
cost and not how many processors there are.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.superlink.grid import InMemoryGrid

from benchmarks.images import settings_for, write_random_images
from benchmarks.pairs import REPETITIONS, Pair, Result, summarized
from benchmarks.rounds import PUBLIC, UNTIMED
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import Configuration, read_config
from fedkd_flwr.engines import RoundListener, flower_log_level, resolve_output
from fedkd_flwr.engines.in_process import run_in_process
from fedkd_flwr.grids.longest_first import LongestFirstGrid
from fedkd_flwr.server_app import serve

Start = Callable[[Configuration, RoundListener], object]
"""Runs a method, and calls with each finished round's row."""

LONG_EPOCHS = 60
"""Local epochs that make a round of LeNets last half a minute."""

LONG_REPETITIONS = 3
"""Rounds of half a minute that are timed."""


def measure_messages() -> Iterator[Result]:
    """Measure what a message costs: clients that have next to nothing to do."""
    clients, samples = 60, 22 + 8
    pairs = round_pairs("mlp", clients, samples)
    each = [(one / clients, other / clients) for one, other in pairs]
    yield summarized("a message to an mlp client under Ray", "in one process", each)


def measure_long_rounds() -> Iterator[Result]:
    """Measure rounds of half a minute, which messages should not prolong by much."""
    pairs = round_pairs("lenet", 10, 800, LONG_REPETITIONS, **{"local-epochs": LONG_EPOCHS})
    yield summarized("a round of half a minute under Ray", "in one process", pairs, at_most=1.25)


def round_pairs(
    model: str, clients: int, samples: int, repetitions: int = REPETITIONS, **further: Any
) -> list[Pair]:
    """Return the seconds of rounds under Ray, each with those in one process right after it.

    Parameters
    ----------
    model : str
        Architecture of every client.
    clients, samples : int
        How many there are, and the samples of each, a quarter of which it tests on.
    repetitions : int
        Rounds that are timed.
    **further
        Further settings of both runs.
    """
    with TemporaryDirectory() as folder:
        write_random_images(Path(folder), clients * samples + PUBLIC)
        rounds = {"num-server-rounds": UNTIMED + repetitions, "held-out-size": PUBLIC}
        # Under Ray clients train one by one, whatever they are.
        settings = settings_for(Path(folder), model, clients, **rounds, cohort="off", **further)
        with (
            played(under_ray, {**settings, "output-dir": f"{folder}/ray"}) as ray,
            played(run_in_process, {**settings, "output-dir": f"{folder}/here"}) as here,
        ):
            pairs = [(ray(), here()) for _ in range(UNTIMED + repetitions)]
    return pairs[UNTIMED:]


@contextmanager
def played(start: Start, settings: Mapping[str, Any]) -> Iterator[Callable[[], float]]:
    """Start a run in a process of its own; yield what plays a round and returns its seconds."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=play, args=(start, settings, theirs))
    process.start()
    theirs.close()

    def next_round() -> float:
        ours.send("go")
        try:
            seconds: float = ours.recv()
        except EOFError:
            raise RuntimeError("a run has ended before its last round") from None
        return seconds

    try:
        yield next_round
        process.join()
    finally:
        process.terminate()
        process.join()


def play(start: Start, settings: Mapping[str, Any], orders: Connection) -> None:
    """Play a round whenever asked to, and tell how long it took."""
    orders.recv()
    began_at = time.perf_counter()
    missing = settings["num-server-rounds"]

    def on_round(row: Mapping[str, Any]) -> None:
        nonlocal began_at
        orders.send(time.perf_counter() - began_at)
        if row["round"] < missing:
            orders.recv()
        began_at = time.perf_counter()

    start(resolve_output(read_config(settings), Path.cwd()), on_round)


def under_ray(configuration: Configuration, on_round: RoundListener) -> None:
    """Run as ``flwr run`` does, but with the server in this process, where it can be held."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        assert isinstance(grid, InMemoryGrid)
        serve(LongestFirstGrid(grid), configuration, on_round)

    with flower_log_level(ERROR):  # it says that `run_simulation` is old
        run_simulation(
            server_app,
            ConfiguredApp(configuration.flat()),
            num_supernodes=configuration.run.plan.num_clients,
            backend_config={
                "client_resources": {"num_cpus": os.cpu_count() or 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False, "logging_level": ERROR},
            },
        )


class ConfiguredApp(ClientApp):
    """The client app with a run config, which Flower gives to apps of ``flwr run`` alone."""

    def __init__(self, run_config: Mapping[str, Any]) -> None:
        super().__init__()
        self.run_config = run_config

    def __call__(self, message: Message, context: Context) -> Message:
        """Serve a message."""
        configured = Context(
            context.run_id,
            context.node_id,
            context.node_config,
            context.state,
            dict(self.run_config),
        )
        return client_app(message, configured)
