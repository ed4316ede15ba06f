"""Compare a round of KT-pFL in Flower's Ray simulation with the same round in one process.

Both runs have their own process and run their rounds alternately. Ray serves clients one after the
other here, like the single process. The ratio therefore shows the cost of Ray's messages and not
the number of cores.
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
from benchmarks.pairs import REPETITIONS, Pair, Result, summarize
from benchmarks.rounds import PUBLIC, UNTIMED
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import Configuration, read_config
from fedkd_flwr.engines import flower_log_level, resolve_output
from fedkd_flwr.engines.in_process import run_in_process
from fedkd_flwr.grids.fast_polling import SimulationGrid
from fedkd_flwr.server_app import serve
from strategies.core.rounds import Observer, RowObserver

Start = Callable[[Configuration, Observer], object]
"""Starts a run, and tells an observer of each finished round."""

LONG_EPOCHS = 60
"""Local epochs with which a round of LeNets takes half a minute."""

LONG_REPETITIONS = 3
"""Number of these rounds to time."""


def measure_messages() -> Iterator[Result]:
    """Measure the cost of a message, with clients that have very little to train."""
    clients, samples = 60, 22 + 8
    pairs = round_pairs("mlp", clients, samples)
    each = [(one / clients, other / clients) for one, other in pairs]
    yield summarize("a message to an mlp client under Ray", "in one process", each)


def measure_long_rounds() -> Iterator[Result]:
    """Measure rounds of half a minute, in which messages should cost little."""
    pairs = round_pairs("lenet", 10, 800, LONG_REPETITIONS, **{"local-epochs": LONG_EPOCHS})
    yield summarize("a round of half a minute under Ray", "in one process", pairs, at_most=1.25)


def round_pairs(
    model: str, clients: int, samples: int, repetitions: int = REPETITIONS, **further: Any
) -> list[Pair]:
    """Return the seconds of rounds under Ray, each with those of a round in one process.

    Parameters
    ----------
    model : str
        Architecture of every client.
    clients, samples : int
        Number of clients, and of samples per client. A quarter of the samples are for testing.
    repetitions : int
        Number of rounds to time.
    **further
        More settings of both runs.
    """
    with TemporaryDirectory() as folder:
        write_random_images(Path(folder), clients * samples + PUBLIC)
        rounds = {"num-server-rounds": UNTIMED + repetitions, "held-out-size": PUBLIC}
        # Under Ray, clients always train one by one.
        settings = settings_for(Path(folder), model, clients, **rounds, cohort="off", **further)
        with (
            run_in_steps(under_ray, {**settings, "output-dir": f"{folder}/ray"}) as ray,
            run_in_steps(run_in_process, {**settings, "output-dir": f"{folder}/here"}) as here,
        ):
            pairs = [(ray(), here()) for _ in range(UNTIMED + repetitions)]
    return pairs[UNTIMED:]


@contextmanager
def run_in_steps(start: Start, settings: Mapping[str, Any]) -> Iterator[Callable[[], float]]:
    """Start a run in a new process; yield a function that runs a round and returns its seconds."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_on_demand, args=(start, settings, theirs))
    process.start()
    theirs.close()

    def next_round() -> float:
        ours.send("go")
        try:
            seconds: float = ours.recv()
        except EOFError:
            raise RuntimeError("The run ended before its last round.") from None
        return seconds

    try:
        yield next_round
        process.join()
    finally:
        process.terminate()
        process.join()


def run_on_demand(start: Start, settings: Mapping[str, Any], requests: Connection) -> None:
    """Run a round on each request, and send its seconds."""
    requests.recv()
    started_at = time.perf_counter()
    last_round = settings["num-server-rounds"]

    def on_round(row: Mapping[str, Any]) -> None:
        nonlocal started_at
        requests.send(time.perf_counter() - started_at)
        if row["round"] < last_round:
            requests.recv()
        started_at = time.perf_counter()

    start(resolve_output(read_config(settings), Path.cwd()), RowObserver(on_round))


def under_ray(configuration: Configuration, observer: Observer) -> None:
    """Run like ``flwr run``, but with the server in this process, where rounds can be paused."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        assert isinstance(grid, InMemoryGrid)
        serve(SimulationGrid(grid), configuration, observer)

    with flower_log_level(ERROR):  # hides the warning that `run_simulation` is deprecated
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
    """The client app with a run config, which Flower provides only under ``flwr run``."""

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
