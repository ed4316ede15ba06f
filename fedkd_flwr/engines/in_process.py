"""The engine ``in-process``: all clients in this process, in cohorts where that is faster."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import train_together
from fedkd_flwr.config import ConfigError, Configuration
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.listeners import ClientsListener, LineListener, RoundListener
from fedkd_flwr.models import pool
from fedkd_flwr.runs import Run
from fedkd_flwr.server_app import serve
from fedkd_flwr.training.cohort import cohort_size

FLOWER = logging.getLogger("flwr")
"""Flower's logger, which this project writes to as well."""

_ONE_RUN = threading.RLock()
"""Held during a run, since all runs of a process share PyTorch's random generator."""


def run_in_process(
    configuration: Configuration,
    on_round: RoundListener | None = None,
    on_line: LineListener | None = None,
    clients: int | None = None,
    resources: Mapping[str, Any] | None = None,
    on_clients: ClientsListener | None = None,
) -> Run:
    """Run a method with all clients in this process.

    Parameters
    ----------
    configuration : Configuration
        The validated run config.
    on_round : callable, optional
        Is called with each finished round's row.
    on_line : callable, optional
        Is called with each line of Flower's log; by default only warnings are printed.
    clients : int, optional
        Number of clients; by default that of the config.
    resources : mapping, optional
        Flower's federation config, which this engine refuses.
    on_clients : callable, optional
        Is called with the number of clients that have replied.

    Raises
    ------
    ConfigError
        If the device cannot be used, or there is a federation config.
    """
    if resources:
        raise ConfigError(
            "The engine in-process takes no federation config; type --engine simulation."
        )
    require_device(configuration.run.torch_device)
    started = clients or configuration.run.plan.num_clients
    together = None if configuration.run.cohort == "off" else train_together
    grid = InProcessGrid(
        client_app,
        started,
        configuration.flat(),
        live=True,
        together=together,
        on_clients=on_clients,
    )
    with _ONE_RUN, flower_log_to(on_line) if on_line else flower_log_level(logging.WARNING):
        threads = torch.get_num_threads()
        try:
            return serve(grid, configuration, on_round)
        finally:
            # The next run may not set their number.
            torch.set_num_threads(threads)
            # A custom network may have changed by the next run and keep its name.
            pool.clear()
            cohort_size.cache_clear()


def require_device(device: str) -> None:
    """Check that PyTorch can use a device.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device = {device} cannot be used here: {reason}") from None


@contextmanager
def flower_log_level(level: int) -> Iterator[None]:
    """Set the level of Flower's log, and restore it afterwards."""
    before = FLOWER.level
    FLOWER.setLevel(level)
    try:
        yield
    finally:
        FLOWER.setLevel(before)


@contextmanager
def flower_log_to(on_line: LineListener) -> Iterator[None]:
    """Pass each line of Flower's log to a listener instead of the terminal."""
    handler = _LineHandler(on_line)
    before = FLOWER.handlers
    FLOWER.handlers = [handler]
    try:
        with flower_log_level(logging.INFO):
            yield
    finally:
        FLOWER.handlers = before


class _LineHandler(logging.Handler):
    """Passes log records on as lines in the format of ``flwr run``."""

    def __init__(self, on_line: LineListener) -> None:
        super().__init__()
        self._on_line = on_line
        self.setFormatter(logging.Formatter("%(levelname)s : %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._on_line(line)
