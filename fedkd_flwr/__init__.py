"""Personalized federated learning by knowledge transfer, as a Flower app and library."""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# PyTorch's threads wait for each other by spinning. Where other work holds a core they spin for
# several times as long as they compute. Read once, when PyTorch is loaded; yours goes before ours.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_EXPORTS = {
    "run": "fedkd_flwr.engines",
    "resume": "fedkd_flwr.engines",
    "load_model": "fedkd_flwr.export",
    "personalize": "fedkd_flwr.analysis.newcomers",
    "load_run": "fedkd_flwr.runs",
    "compare": "fedkd_flwr.analysis.comparison",
    "client_data": "fedkd_flwr.analysis.samples",
    "cross": "fedkd_flwr.analysis.cross",
    "Comparison": "fedkd_flwr.analysis.comparison",
    "run_sweep": "fedkd_flwr.sweeps",
    "Run": "fedkd_flwr.runs",
    "build_model": "fedkd_flwr.models.build",
    "ConfigError": "fedkd_flwr.config",
    "METHODS": "fedkd_flwr.methods",
    "register": "fedkd_flwr.methods",
}

__all__ = [
    "METHODS",
    "Comparison",
    "ConfigError",
    "Run",
    "__version__",
    "build_model",
    "client_data",
    "compare",
    "cross",
    "load_model",
    "load_run",
    "personalize",
    "register",
    "resume",
    "run",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    """Load the public API on first use, so that importing the package stays cheap."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
