"""Observers of a run: progress bars, trackers and listeners."""

from collections.abc import Callable, Mapping
from typing import Any

from fedkd_flwr.runs.reading import Run
from strategies.core.rounds import RoundRecord


class Observer:
    """Is informed of the events of a run; subclasses override the methods that they need.

    Each event is in the run directory before observers are informed. The first call is
    `run_started`, the last either `run_finished` or `run_stopped`.
    """

    def run_started(self, run: Run) -> None:
        """Handle the start of a run, or the continuation of one that has rounds already."""

    def round_finished(self, record: RoundRecord) -> None:
        """Handle a completed round."""

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Handle the end of the run, with the content of ``summary.json``."""

    def run_stopped(self) -> None:
        """Handle an early stop; another process may continue the run."""


class RowObserver(Observer):
    """Passes the row of each completed round to a function.

    Parameters
    ----------
    listener : callable
        Is called with the row.
    """

    def __init__(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        self._listener = listener

    def round_finished(self, record: RoundRecord) -> None:
        """Pass the row to the function."""
        self._listener(record.row)
