"""The folder of a sweep's runs: may the sweep write there, what did earlier attempts leave."""

import itertools
import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from fedkd_flwr import engines
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import OWN_SETTINGS, ConfigError, Configuration
from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.files import now
from fedkd_flwr.runs import (
    Run,
    RunDirectoryError,
    absolute,
    changeable,
    changed_settings,
    load_run,
    names_of_code,
    require_memories,
)
from fedkd_flwr.runs.continuing import ACCEPT
from fedkd_flwr.runs.folders import lock_directory
from fedkd_flwr.runs.provenance import accept_code, changed_code
from strategies.core.flower import log

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
        "time": now(),
    }
    with (folder / "failures.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


WHOLE_EXTRAS = ("models-dir", "keep-best", "record-answers")
"""Those of `EXTRAS` that a run has or lacks; of the others it may have a part."""

EXTRAS = (*WHOLE_EXTRAS, "measures", "tracker")
"""Keys that add files or columns and do not change other results."""


def finished_run(path: Path, values: Mapping[str, Scalar]) -> Run | None:
    """Return the finished run of a directory if settings and code are these."""
    run = run_with(path, values)
    if run is None or not run.finished:
        return None
    others = changed_code(run, values)
    if others and not values[ACCEPT]:
        told = "%s is finished with other code of %s: rerun; --accept-changes keeps such runs"
        log(WARNING, told, path.name, ", ".join(others))
        return None
    if others:
        accept_code(run, values)
    return run


def rounds_to_continue_from(path: Path, values: Mapping[str, Scalar]) -> int:
    """Return how many rounds of a stopped run need not be repeated."""
    run = run_with(path, values)
    if run is None or run.finished:
        return 0
    try:
        configuration = engines.resumed(path, changeable(values), names_of_code(values))
        changed_settings(run, configuration)
        return require_memories(run, configuration.run).completed_rounds
    except (ConfigError, RunDirectoryError):
        return 0


def require_unlocked(path: Path) -> None:
    """Check that no other process is writing a run."""
    if path.exists():
        lock_directory(path).close()  # some systems cannot rename a folder with an open file


def move_aside(path: Path) -> None:
    """Move what an earlier attempt left to the folder ``aside``."""
    if not path.exists():
        return
    aside = path.parent / "aside"
    names = (aside / f"{path.name}-{number}" for number in itertools.count(1))
    free = next(name for name in names if not name.exists())
    try:
        aside.mkdir(exist_ok=True)
        path.rename(free)
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(f"{path} cannot be moved to {free}: {reason}.") from None


def missing_extras(run: Run, values: Mapping[str, Scalar]) -> list[str]:
    """Return which extras of a sweep an earlier finished run lacks."""

    def lacks(key: str) -> bool:
        if key in WHOLE_EXTRAS:
            return bool(values[key]) and not run.config.get(key)
        had, asked = str(run.config.get(key, "")), str(values[key])
        return not set(filter(None, asked.split(","))) <= set(had.split(","))

    return [key for key in EXTRAS if lacks(key)]


def run_with(path: Path, values: Mapping[str, Any]) -> Run | None:
    """Return the run of a directory, also a stopped one, if it has these settings."""
    try:
        run = load_run(path, names_of_code(values))
    except RunDirectoryError:
        return None
    return run if defining_settings(run.config) == defining_settings(values) else None
