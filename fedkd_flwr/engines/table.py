"""The engines by name: the only place where a name becomes a way to run."""

from collections.abc import Mapping
from typing import Any, Protocol

from fedkd_flwr.config import ConfigError, Configuration
from fedkd_flwr.engines.in_process import run_in_process
from fedkd_flwr.engines.simulation import run_simulation
from fedkd_flwr.listeners import ClientsListener, LineListener, RoundListener
from fedkd_flwr.runs import Run


class Engine(Protocol):
    """Runs a method from its config, and returns the finished run."""

    def __call__(
        self,
        configuration: Configuration,
        on_round: RoundListener | None = None,
        on_line: LineListener | None = None,
        clients: int | None = None,
        resources: Mapping[str, Any] | None = None,
        on_clients: ClientsListener | None = None,
    ) -> Run:
        """Run it; see `fedkd_flwr.engines.simulation.run_simulation` for the parameters."""


ENGINES: dict[str, Engine] = {"in-process": run_in_process, "simulation": run_simulation}
"""Where a run can take place."""


def find_engine(name: str) -> Engine:
    """Return the engine of a name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine = {name!r} is none of the allowed {', '.join(ENGINES)}.")
    return ENGINES[name]
