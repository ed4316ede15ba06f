"""The engines by name: the only place that selects one by name."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedkd_flwr.config import ConfigError, Configuration
from fedkd_flwr.engines.in_process import check_in_process, run_in_process
from fedkd_flwr.engines.simulation import check_simulation, run_simulation
from fedkd_flwr.runs import Run
from strategies.core.rounds import Observer


class Engine(Protocol):
    """Runs a method as its config says and returns the finished run."""

    def __call__(
        self,
        configuration: Configuration,
        observer: Observer | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> Run:
        """Run the method; see `fedkd_flwr.engines.simulation.run_simulation` for the parameters."""


ENGINES: dict[str, Engine] = {"in-process": run_in_process, "simulation": run_simulation}
"""Where clients can run."""

CHECKS: dict[str, Callable[[Configuration, Mapping[str, Any] | None], None]] = {
    "in-process": check_in_process,
    "simulation": check_simulation,
}
"""What refuses a run that an engine cannot start on this machine."""


def find_engine(name: str) -> Engine:
    """Return the engine of a name.

    Raises
    ------
    ConfigError
        If there is none; with the allowed names.
    """
    if name not in ENGINES:
        starts = [engine for engine in ENGINES if name and engine.startswith(name.lower())]
        close = starts or difflib.get_close_matches(name.lower(), ENGINES, n=1)
        meant = f"; did you mean {close[0]}?" if close else "."
        raise ConfigError(
            f"engine = {name!r} is not one of {', '.join(ENGINES)} or, for `fedkd run`, "
            f"deployment:NAME{meant}"
        )
    return ENGINES[name]


def check_engine(
    name: str, configuration: Configuration, resources: Mapping[str, Any] | None = None
) -> None:
    """Refuse a run that an engine cannot start on this machine.

    Raises
    ------
    ConfigError
        With one sentence; the engine itself would raise the same.
    """
    CHECKS[name](configuration, resources)
