"""The user's code of a run: recorded by digests, and compared with the code that is here now.

Bytecode differs between minor versions of Python. There nothing is said of the code itself.
"""

import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from fedkd_flwr.custom_objects.digests import code_digest, digests_by_part
from fedkd_flwr.custom_objects.importing import CustomObjectError, find_custom
from fedkd_flwr.methods import METHODS, REGISTERED
from fedkd_flwr.runs.reading import Run
from fedkd_flwr.runs.recorded import names_of_code
from fedkd_flwr.runs.writing import write_json

ACCEPTED = "accepted"
"""Key of ``config.json`` for code with which a finished run counts as made."""


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
    return python_of({"versions": {"python": platform.python_version()}})


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
    accepted = {
        "code": digests_of_code(config),
        "versions": {"python": platform.python_version()},
    }
    write_json(run.path / "config.json", {**run.description, ACCEPTED: accepted})


def has_accepted_code(description: Mapping[str, Any]) -> bool:
    """Return whether a run counts as made with one code, and was not."""
    legs = [description, *description.get("continued", [])]
    recorded = [leg["code"] for leg in legs if "code" in leg]
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


def _last_maker(description: Mapping[str, Any]) -> Mapping[str, Any]:
    legs = [description, *description.get("continued", [])]
    return description.get(ACCEPTED) or next(
        (leg for leg in reversed(legs) if "versions" in leg), {}
    )
