"""Who is told of a run while its directory is written: progress bars, trackers, listeners."""

from collections.abc import Callable, Mapping
from typing import Any

from fedkd_flwr.runs.reading import Run
from strategies.core.rounds import RoundRecord


class Observer:
    """Is told of a run as it goes; a subclass overrides what it wants to hear.

    What it is told is in the run directory already. The first call is `run_started`, the last
    either `run_finished` or `run_stopped`.
    """

    def run_started(self, run: Run) -> None:
        """Hear that a run begins, or goes on after the rounds that it has."""

    def round_finished(self, record: RoundRecord) -> None:
        """Hear of a round that is complete."""

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Hear of the end, with what ``summary.json`` holds."""

    def run_stopped(self) -> None:
        """Hear that the run ends before its end; it may be continued, by another process."""


class RowObserver(Observer):
    """Passes each finished round's row on to a function.

    Parameters
    ----------
    listener : callable
        Is called with the row.
    """

    def __init__(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        self._listener = listener

    def round_finished(self, record: RoundRecord) -> None:
        """Pass the row on."""
        self._listener(record.row)
