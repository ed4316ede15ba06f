"""Personalized federated learning by knowledge transfer, as a Flower app and library."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

__version__ = "0.2.0"

# PyTorch's threads wait for each other spinning, for so long that on a machine with other work to
# do a run takes several times its time. This is as short as the library itself (libgomp) has it
# where it knows of more threads than cores. Read once, when PyTorch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _require_strategies() -> None:
    """Refuse another package ``strategies`` that Python finds before the one of this project."""
    own = Path(__file__).resolve().parents[1] / "strategies" / "__init__.py"
    loaded = sys.modules.get("strategies")
    spec = loaded.__spec__ if loaded else find_spec("strategies")
    found = Path(spec.origin) if spec and spec.origin else own
    if found.resolve() != own:
        place = found.parent if found.name == "__init__.py" else found
        raise ImportError(
            f"{place} hides the package strategies of fedkd-flwr: rename it, or start Python in "
            "another folder."
        )


_require_strategies()

_EXPORTS = {
    "run": "fedkd_flwr.engines:run",
    "resume": "fedkd_flwr.engines:resume",
    "sweep": "fedkd_flwr.sweeps:sweep",
    "run_sweep": "fedkd_flwr.sweeps:run_sweep",
    "compare": "fedkd_flwr.analysis.comparison:compare",
    "cross": "fedkd_flwr.analysis.cross:cross",
    "client_data": "fedkd_flwr.analysis.client_models:client_data",
    "load_run": "fedkd_flwr.runs:load_run",
    "load_model": "fedkd_flwr.export:load_model",
    "settings": "fedkd_flwr.config.settings_reference:settings",
    "Run": "fedkd_flwr.runs:Run",
    "Comparison": "fedkd_flwr.analysis.comparison:Comparison",
    "build_model": "fedkd_flwr.models.build:build_model",
    "ConfigError": "fedkd_flwr.config:ConfigError",
    "METHODS": "fedkd_flwr.methods:METHODS",
    "register": "fedkd_flwr.custom_objects.naming:register",
    "name_objects": "fedkd_flwr.custom_objects.naming:name_objects",
    "plots": "fedkd_flwr.plots",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    """Load the public API on first use, so that importing the package stays cheap."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(_EXPORTS[name])


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return __all__
