"""Provenance of a run besides its settings: the project's code, packages and the machine."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedkd_flwr import __version__

PROJECT = Path(__file__).parents[2]
"""The Git checkout that this code belongs to, if any."""

PACKAGES = ("flwr", "torch", "torchvision", "numpy", "scikit-learn")
"""Packages whose versions a run records."""

version = cache(importlib.metadata.version)
"""Return the version of an installed package. Its metadata are read once."""

DECISIVE = ("flwr", "torch")
"""Packages with which a run is not continued in another major version, unless it is intended."""


def provenance(device: str) -> dict[str, Any]:
    """Describe the code, the packages and the machine of this process."""
    import torch  # deferred: only the writer of a run needs it

    return {
        "project": project_version(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "processor": processor_name(),
        "vector_extensions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "torch_threads": torch.get_num_threads(),
    }


def legs_of(description: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], slice]]:
    """Return what describes each process that wrote a run, and its rounds that count."""
    legs = [{**description, "after_round": 0}, *description.get("continued", [])]
    begins = [leg["after_round"] for leg in legs]
    ends = [min(begins[number:], default=None) for number in range(1, len(legs) + 1)]
    return [(leg, slice(begin, end)) for leg, begin, end in zip(legs, begins, ends, strict=True)]


def other_major_versions(description: Mapping[str, Any]) -> list[str]:
    """Return what has another major version here than in the last process that wrote a run.

    Before version 1, the second number counts as the major version.
    """
    legs = [description, *description.get("continued", [])]
    last: Mapping[str, Any] = next((leg for leg in reversed(legs) if "versions" in leg), {})
    project = last.get("project", {}).get("version", __version__)
    before = {"fedkd-flwr": project, **last.get("versions", {})}
    now = {"fedkd-flwr": __version__, **{name: version(name) for name in DECISIVE}}
    return [
        f"{name} {before[name]} (now {here})"
        for name, here in now.items()
        if _major(str(before.get(name, here))) != _major(here)
    ]


def _major(text: str) -> list[str]:
    first, *others = text.split(".")
    return [first, *others[:1]] if first == "0" else [first]


@cache
def project_version() -> dict[str, Any]:
    """Return the project's version, and its commit where it runs from a Git checkout."""
    is_checkout = (PROJECT / ".git").exists()
    return {
        "version": __version__,
        "commit": _git("rev-parse", "HEAD") if is_checkout else "",
        "modified": bool(is_checkout and _git("status", "--porcelain", "--untracked-files=no")),
    }


@cache
def processor_name() -> str:
    """Return the processor's model as Linux names it, or what the platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _git(*arguments: str) -> str:
    """Return what a Git command prints about the checkout; empty if Git is missing or refuses."""
    command = ["git", "-C", str(PROJECT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
