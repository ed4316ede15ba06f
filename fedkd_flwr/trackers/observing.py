"""Observers that write to trackers; a failing tracker never stops a run."""

import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from pkgutil import resolve_name
from typing import Any, Protocol

from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs.reading import Row, Run
from fedkd_flwr.trackers.registry import TRACKERS
from fedkd_flwr.trackers.series import client_values, round_values, summary_values
from fedkd_flwr.trackers.settings import TrackerSettings
from strategies.core.flower import log
from strategies.core.rounds import Observer, RoundRecord


class Tracker(Protocol):
    """Writes the series of one run to a tracker; any method may fail.

    It is constructed with the `Run`, and starts or continues it by the run's id.

    Attributes
    ----------
    is_new : bool
        Whether the tracker has no earlier rounds of the run.
    """

    is_new: bool

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the values of one round."""

    def finish(self, values: Mapping[str, float]) -> None:
        """Write the summary, and mark the run as finished."""

    def stop(self) -> None:
        """Mark the run as stopped."""


class TrackerObserver(Observer):
    """Writes a run to a tracker; if the tracker fails, the run continues without it.

    Parameters
    ----------
    name : str
        One of `TRACKERS`.
    with_clients : bool
        Whether to write each client's numbers too.
    """

    def __init__(self, name: str, with_clients: bool) -> None:
        self._name = name
        self._with_clients = with_clients
        self._tracker: Tracker | None = None

    def run_started(self, run: Run) -> None:
        """Open the tracker, and write the rounds that it lacks."""

        def start() -> None:
            self._tracker = tracker = resolve_name(TRACKERS[self._name])(run)
            self._catch_up(tracker, run, after=0 if tracker.is_new else self._last_tracked(run))

        self._attempt(start)

    def round_finished(self, record: RoundRecord) -> None:
        """Write a round."""
        if tracker := self._tracker:
            self._attempt(lambda: self._log(tracker, record.row, record.clients))

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        if tracker := self._tracker:
            self._attempt(lambda: tracker.finish(summary_values(summary)))

    def run_stopped(self) -> None:
        """Close the tracker."""
        if tracker := self._tracker:
            self._attempt(tracker.stop)

    def _last_tracked(self, run: Run) -> int:
        """Return the last round that was written to the tracker."""
        before = self._name
        for leg in reversed(run.description.get("continued", [])):
            before, _ = leg["changes"].get("tracker", (before, before))
            if self._name in before.split(","):
                return int(leg["after_round"])
        return 0

    def _catch_up(self, tracker: Tracker, run: Run, after: int) -> None:
        clients: dict[int, list[Row]] = defaultdict(list)
        for row in run.client_rows:
            clients[row["round"]].append(row)
        for row in run.round_rows[after:]:
            self._log(tracker, row, clients[row["round"]])

    def _log(self, tracker: Tracker, row: Row, clients: Iterable[Row]) -> None:
        of_clients = client_values(clients) if self._with_clients else {}
        tracker.log(row["round"], round_values(row) | of_clients)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        # Errors of another library, which the run does not depend on.
        except Exception as error:
            self._tracker = None
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log(WARNING, "%s failed, and the run continues without it: %s", self._name, reason)


def trackers_of(settings: TrackerSettings) -> list[Observer]:
    """Return an observer for each tracker in the settings."""
    return [TrackerObserver(name, settings.tracker_clients) for name in settings.tracker]


def require_trackers(settings: TrackerSettings) -> None:
    """Check that the trackers of a run are installed here.

    Raises
    ------
    ConfigError
        With the command that installs the first missing one.
    """
    for name in settings.tracker:
        found = importlib.util.find_spec(name)
        # A folder of that name, such as those that `wandb` writes, is found too, without an origin.
        if found is None or found.origin is None:
            raise ConfigError(
                f"tracker = {name} is not installed where the server runs: "
                f"`uv sync --extra {name}`, or `pip install 'fedkd-flwr[{name}]'`."
            )
