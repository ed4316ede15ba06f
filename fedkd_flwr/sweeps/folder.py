"""The folder of a sweep's runs: whether the sweep may write there, and why runs failed."""

import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import OWN_SETTINGS, Configuration
from fedkd_flwr.runs import RunDirectoryError, absolute

Settings = Mapping[str, Any]


def sweep_folder(path: str | Path, output_dir: str | Path | None = None) -> Path:
    """Return the absolute folder of a sweep's runs, by default ``./runs/NAME-OF-THE-FILE``."""
    return absolute(output_dir or Path("runs") / Path(path).stem)


def require_own_folder(folder: Path, configurations: Iterable[Configuration]) -> None:
    """Refuse a run directory, and a folder that holds runs of another sweep alone."""
    other_folder = "choose another folder with --output-dir."
    if (folder / "config.json").exists():
        raise RunDirectoryError(f"{folder} is a run, not a folder of runs; {other_folder}")
    there = _distinct(map(_recorded, folder.glob("*/config.json")))
    here = _distinct(configuration.flat() for configuration in configurations)
    differing = min((_differing(a, b) for a in there for b in here), key=len, default=[])
    if not differing:
        return
    raise RunDirectoryError(
        f"{folder} holds runs of another sweep ({'; '.join(differing)}); {other_folder}"
    )


def _recorded(file: Path) -> Settings:
    """Return the flat config of a run; empty if it cannot be read."""
    try:
        config: Settings = json.loads(file.read_text(encoding="utf-8"))["config"]
        return config if "strategy" in config else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _distinct(configs: Iterable[Settings]) -> list[dict[str, Any]]:
    """Return the settings that all methods of a sweep share, each combination once."""
    found: list[dict[str, Any]] = []
    for config in filter(None, configs):
        shared = {
            key: value
            for key, value in defining_settings(config).items()
            if "." not in key and key not in ("strategy", "seed", OWN_SETTINGS)
        }
        if shared not in found:
            found.append(shared)
    return found


def _differing(there: Settings, here: Settings) -> list[str]:
    """Describe the settings of the sweep that runs in the folder do not share."""
    return [
        f"{key} = {there.get(key)!r} there, {value!r} in this sweep"
        for key, value in here.items()
        if there.get(key) != value
    ]


@dataclass(frozen=True)
class Failure:
    """Why a run failed."""

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Describe an exception as text, which can be sent between processes."""
        lines = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), lines)


def record_failure(folder: Path, name: str, failure: Failure) -> None:
    """Append a failure to ``failures.jsonl`` in the folder of the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "run": name,
        "error": f"{failure.kind}: {failure.message}",
        "traceback": failure.traceback,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with (folder / "failures.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
