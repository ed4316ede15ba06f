"""What earlier attempts left of a sweep's run: a finished run, one to continue, or neither."""

import itertools
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

from fedkd_flwr import engines
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError
from fedkd_flwr.config.run_config import Scalar
from fedkd_flwr.runs import (
    Run,
    RunDirectoryError,
    changeable,
    changed_settings,
    load_run,
    names_of_code,
    require_memories,
)
from fedkd_flwr.runs.continuing import ACCEPT
from fedkd_flwr.runs.lock import lock_directory
from fedkd_flwr.runs.own_code import accept_code, changed_code
from strategies.core.flower import log

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
