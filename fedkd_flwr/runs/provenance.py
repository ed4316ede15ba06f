"""What made a run besides its settings: the project's and the user's code, packages, the machine.

The user's code is recorded by digests. Bytecode differs between minor versions of Python, so with
another one nothing is said of the code.
"""

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fedkd_flwr import __version__
from fedkd_flwr.custom_objects.digests import code_digest, digests_by_part
from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom
from fedkd_flwr.files import write_json
from fedkd_flwr.methods import METHODS, REGISTERED
from fedkd_flwr.runs.reading import Run
from fedkd_flwr.runs.recorded import names_of_code

PROJECT = Path(__file__).parents[2]  # the Git checkout that this code belongs to, if any

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


def other_major_versions(description: Mapping[str, Any]) -> list[str]:
    """Return what has another major version here than in the last process that wrote a run.

    Before version 1, the second number counts as the major version.
    """
    last = _last_leg(description)
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


ACCEPTED = "accepted"  # key of ``config.json`` for code with which a finished run counts as made


def digests_of_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of own objects of a run config, as far as they are here."""
    digests: dict[str, str] = {}
    for name in names_of_code(config):
        with suppress(CustomObjectError):
            digests |= digests_by_part(name, find_custom(name))
    strategy = str(config["strategy"])
    if strategy in REGISTERED and strategy not in METHODS:
        digests |= digests_by_part(strategy, REGISTERED[strategy])
    return digests


def python_here() -> str:
    """Return the minor version of Python, such as ``3.12``."""
    return minor_version(platform.python_version())


def python_of(description: Mapping[str, Any]) -> str:
    """Return the minor version of Python that wrote a run last; empty if it is not recorded."""
    return minor_version(str(_last_maker(description).get("versions", {}).get("python", "")))


def minor_version(version: str) -> str:
    """Return ``3.12`` of ``3.12.4``."""
    return ".".join(version.split(".")[:2])


def code_of(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the recorded digests of a run's code: of its last process, or accepted afterwards."""
    code = _last_maker(description).get("code")
    return code if isinstance(code, dict) else {}


def changed_code(run: Run, config: Mapping[str, Any]) -> list[str]:
    """Return which own objects of a flat run config, and modules, are not those that made a run."""
    before = code_of(run.description)
    if not before or python_of(run.description) != python_here():
        return []
    now = digests_of_code(config)
    return [name for name in now if before.get(name, now[name]) != now[name]]


def accept_code(run: Run, config: Mapping[str, Any]) -> None:
    """Record that a finished run counts as made with the code that is here."""
    accepted = {"code": digests_of_code(config), "versions": {"python": platform.python_version()}}
    write_json(run.path / "config.json", {**run.description, ACCEPTED: accepted})


def has_accepted_code(description: Mapping[str, Any]) -> bool:
    """Return whether a run counts as made with one code, and was not."""
    recorded = [leg["code"] for leg in _legs(description) if "code" in leg]
    return ACCEPTED in description or any(code != recorded[0] for code in recorded)


def versions_of_code(runs: Iterable[Run]) -> list[list[Run]]:
    """Return runs in groups that were made with one version of the code they share.

    Code that is not recorded, or was under another minor version of Python, counts as equal.
    """
    versions: list[list[Run]] = []
    for run in runs:
        fitting = (version for version in versions if all(_agree(run, one) for one in version))
        version = next(fitting, None)
        if version is None:
            versions.append([run])
        else:
            versions.remove(version)
            versions.append([*version, run])
    return versions


def short_digest(run: Run) -> str:
    """Return six digits that tell versions of a run's code apart."""
    return code_digest(sorted(code_of(run.description).items()))[:6]


def _agree(one: Run, other: Run) -> bool:
    if python_of(one.description) != python_of(other.description):
        return True
    before, now = code_of(one.description), code_of(other.description)
    return all(before[name] == now[name] for name in before.keys() & now.keys())


def _legs(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what describes each process that wrote a run."""
    return [description, *description.get("continued", [])]


def _last_leg(description: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((leg for leg in reversed(_legs(description)) if "versions" in leg), {})


def _last_maker(description: Mapping[str, Any]) -> Mapping[str, Any]:
    return description.get(ACCEPTED) or _last_leg(description)
