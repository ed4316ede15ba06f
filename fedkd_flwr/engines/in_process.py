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
from fedkd_flwr.models import model_pool
from fedkd_flwr.models.features import own_widths
from fedkd_flwr.runs import Run
from fedkd_flwr.server_app import serve
from fedkd_flwr.training.cohort import cohort_size
from strategies.core.flower import LOGGER
from strategies.core.rounds import Observer

_ONE_RUN = threading.RLock()
"""Held during a run, since all runs of a process share PyTorch's random generator."""


def run_in_process(
    configuration: Configuration,
    observer: Observer | None = None,
    resources: Mapping[str, Any] | None = None,
) -> Run:
    """Run a method with all clients in this process.

    Parameters
    ----------
    configuration : Configuration
        The validated run config.
    observer : Observer, optional
        Is told of the events of the run. Unless it reads Flower's log, warnings are printed.
    resources : mapping, optional
        Flower's federation config, which this engine refuses.

    Raises
    ------
    ConfigError
        If the device cannot be used, or there is a federation config.
    """
    check_in_process(configuration, resources)
    together = None if configuration.run.cohort == "off" else train_together
    grid = InProcessGrid(
        client_app,
        configuration.run.plan.num_clients,
        configuration,
        together=together,
        observer=observer,
    )
    with _ONE_RUN, _log_for(observer or Observer()):
        threads = torch.get_num_threads()
        try:
            return serve(grid, configuration, observer)
        finally:
            # The next run may not set their number.
            torch.set_num_threads(threads)
            # A custom network may have changed by the next run and keep its name.
            model_pool.clear()
            cohort_size.cache_clear()
            own_widths.cache_clear()


def check_in_process(configuration: Configuration, resources: Mapping[str, Any] | None) -> None:
    """Refuse what this engine cannot run; see `run_in_process`."""
    if resources:
        raise ConfigError(
            "The engine in-process takes no federation config; type --engine simulation."
        )
    require_device(configuration.run.torch_device)


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
    before = LOGGER.level
    LOGGER.setLevel(level)
    try:
        yield
    finally:
        LOGGER.setLevel(before)


@contextmanager
def _log_for(observer: Observer) -> Iterator[None]:
    """Pass Flower's log to an observer that reads it; else print its warnings."""
    before = LOGGER.handlers
    if observer.reads_log:
        LOGGER.handlers = [_LineHandler(observer)]
    try:
        with flower_log_level(logging.INFO if observer.reads_log else logging.WARNING):
            yield
    finally:
        LOGGER.handlers = before


class _LineHandler(logging.Handler):
    """Passes log records on as lines in the format of ``flwr run``."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer
        self.setFormatter(logging.Formatter("%(levelname)s : %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._observer.line_logged(line)
