"""Trackers among the observers of a run: told of each round, and never the end of one."""

import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from pkgutil import resolve_name
from typing import Any, Protocol

from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs.observers import Observer
from fedkd_flwr.runs.reading import Row, Run
from fedkd_flwr.trackers.catalogue import TRACKERS
from fedkd_flwr.trackers.series import client_values, round_values, summary_values
from fedkd_flwr.trackers.settings import TrackerSettings
from strategies.core.flower import log
from strategies.core.rounds import RoundRecord


class Tracker(Protocol):
    """Writes the series of one run to where a tracker reads them; any method may fail.

    It is made with the `Run`, and begins it or goes on with it by the run's id.

    Attributes
    ----------
    is_new : bool
        Whether it has none of the rounds before.
    """

    is_new: bool

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        """Write the values of one round."""

    def finish(self, values: Mapping[str, float]) -> None:
        """Write what sums the run up, and mark it as finished."""

    def stop(self) -> None:
        """Leave the run as one that stopped before its end."""


class TrackerObserver(Observer):
    """Tells a tracker of a run; once it fails, the run goes on without it.

    Parameters
    ----------
    name : str
        One of `TRACKERS`.
    with_clients : bool
        Whether each client's numbers are series of their own.
    """

    def __init__(self, name: str, with_clients: bool) -> None:
        self._name = name
        self._with_clients = with_clients
        self._tracker: Tracker | None = None

    def run_started(self, run: Run) -> None:
        """Open the tracker, and write what it has missed of a run that goes on."""

        def begin() -> None:
            self._tracker = tracker = resolve_name(TRACKERS[self._name])(run)
            self._catch_up(tracker, run, after=0 if tracker.is_new else self._last_told(run))

        self._attempt(begin)

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

    def _last_told(self, run: Run) -> int:
        """Return the round at which the last leg ended that the tracker was told of."""
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
        # Another library's network or disk, and nothing that the run depends on.
        except Exception as error:
            self._tracker = None
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log(WARNING, "%s fails, and the run goes on without it: %s", self._name, reason)


def trackers_of(settings: TrackerSettings) -> list[Observer]:
    """Return an observer for each tracker that a run is to be followed in."""
    return [TrackerObserver(name, settings.tracker_clients) for name in settings.tracker]


def require_trackers(settings: TrackerSettings) -> None:
    """Make sure that the trackers of a run are installed here.

    Raises
    ------
    ConfigError
        With how to install the first that is not.
    """
    for name in settings.tracker:
        found = importlib.util.find_spec(name)
        # A folder of that name, such as `wandb` leaves behind, is found too, without an origin.
        if found is None or found.origin is None:
            raise ConfigError(
                f"tracker = {name} is not installed where the server runs: "
                f"`uv sync --extra {name}`, or `pip install 'fedkd-flwr[{name}]'`."
            )
