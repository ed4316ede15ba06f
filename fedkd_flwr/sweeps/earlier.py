"""What earlier attempts at a run of a sweep left: a finished run, one to go on with, or neither."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr import engines
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import ConfigError
from fedkd_flwr.flat import Scalar
from fedkd_flwr.runs import (
    Run,
    RunDirectoryError,
    changeable,
    changed_settings,
    load_run,
    read_checkpoint,
    require_memories,
)
from fedkd_flwr.runs.lock import lock_directory

EXTRAS = ("models-dir", "keep-best", "measures", "tracker")
"""Keys that no number of a run depends on, and that leave something more of it."""


def finished_run(path: Path, values: Mapping[str, Scalar]) -> Run | None:
    """Return the finished run of a directory, if there is one with these settings."""
    run = _run_with(path, values)
    return run if run and run.finished else None


def rounds_to_go_on_from(path: Path, values: Mapping[str, Scalar]) -> int:
    """Return how many rounds of a stopped run need not be done again.

    Parameters
    ----------
    path : Path
        The run directory, which may be missing.
    values : mapping
        The flat run config that the run has in the sweep.

    Returns
    -------
    int
        0 if there is no such run, it has other settings, or lacks what it would go on from.
    """
    run = _run_with(path, values)
    if run is None or run.finished:
        return 0
    try:
        completed = read_checkpoint(path).completed_rounds
        configuration = engines.resumed(path, changeable(values))
        changed_settings(run, configuration)
        require_memories(run, configuration.run.state_dir)
    except (ConfigError, RunDirectoryError):
        return 0
    return completed


def require_unlocked(path: Path) -> None:
    """Make sure that no other process is writing a run.

    Raises
    ------
    RunDirectoryError
        If one is.
    """
    if path.exists():
        lock_directory(path).close()  # a folder with an open file cannot be renamed everywhere


def move_aside(path: Path) -> None:
    """Keep what an earlier attempt left behind, out of the way of the next.

    Raises
    ------
    RunDirectoryError
        If the disk refuses.
    """
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


def done_without(run: Run, values: Mapping[str, Scalar]) -> list[str]:
    """Return which extras of a sweep a finished run lacks, since it was done before.

    Parameters
    ----------
    run : Run
        A finished run.
    values : mapping
        The flat run config that it has in the sweep.

    Returns
    -------
    list of str
        Keys among `EXTRAS`.
    """

    def lacks(key: str) -> bool:
        if key in ("models-dir", "keep-best"):
            return bool(values[key]) and not run.config.get(key)
        had, asked = str(run.config.get(key, "")), str(values[key])
        return not set(filter(None, asked.split(","))) <= set(had.split(","))

    return [key for key in EXTRAS if lacks(key)]


def _run_with(path: Path, values: Mapping[str, Any]) -> Run | None:
    """Return the run of a directory; not one from before a default changed, nor a damaged one."""
    try:
        run = load_run(path)
    except RunDirectoryError:
        return None
    return run if defining_settings(run.config) == defining_settings(values) else None
