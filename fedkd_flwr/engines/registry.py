"""The engines by name: the only place that selects one by name."""

import difflib
from collections.abc import Mapping
from typing import Any, Protocol

from fedkd_flwr.config import ConfigError, Configuration
from fedkd_flwr.engines.in_process import run_in_process
from fedkd_flwr.engines.simulation import run_simulation
from fedkd_flwr.runs import Run
from strategies.core.rounds import Observer


class Engine(Protocol):
    """Runs a method as its config says and returns the finished run."""

    def __call__(
        self,
        configuration: Configuration,
        observer: Observer | None = None,
        clients: int | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> Run:
        """Run the method; see `fedkd_flwr.engines.simulation.run_simulation` for the parameters."""


ENGINES: dict[str, Engine] = {"in-process": run_in_process, "simulation": run_simulation}
"""Where clients can run."""


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
