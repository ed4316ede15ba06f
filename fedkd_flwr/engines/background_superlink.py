"""The local SuperLink that ``flwr run`` starts in the background and leaves running.

Flower 1.41 starts it on a fixed port and logs to ``local-superlink/superlink.log`` in its home.
No other SuperLink has both: ``fedkd run --engine simulation`` uses a free port and no log file,
and a deployment has files of its own.
"""

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from strategies.core.flower import LOCAL_SUPERLINK_HTTP_API_PORT

PROGRAM = "flower-superlink"
"""Flower's program, as it stands in the command line."""

SIMULATION_PROGRAM = "flwr-simulation"
"""Flower's program that executes one run in simulation."""

LOG_FILE = ("local-superlink", "superlink.log")
"""Last parts of the path that Flower passes as ``--log-file``."""

STOP_SECONDS = 20.0
"""How long processes may take to end before they are killed."""

ADDRESS = f"127.0.0.1:{LOCAL_SUPERLINK_HTTP_API_PORT}"
"""Where ``flwr run`` looks for its SuperLink."""


@dataclass(frozen=True)
class StoppedSuperLink:
    """A background SuperLink that was stopped.

    Attributes
    ----------
    process_id : int
        Its process.
    may_have_run : bool
        Whether a run's process was alive, so that a run was executing or had just finished.
    """

    process_id: int
    may_have_run: bool


def stop_background_superlinks() -> list[StoppedSuperLink]:
    """Stop the background SuperLink of this user, and the processes that it started.

    Returns
    -------
    list of StoppedSuperLink
        What was stopped; empty if none was running.

    Raises
    ------
    psutil.AccessDenied
        If the operating system does not let this user stop it.
    """
    return [_stop(process) for process in _background_superlinks()]


def is_background_superlink(command_line: list[str]) -> bool:
    """Return whether a command line is that of the SuperLink that ``flwr run`` starts.

    Parameters
    ----------
    command_line : list of str
        The arguments of a process. The interpreter may come first.
    """
    programs = [Path(argument).stem for argument in command_line[:2]]
    options = dict(pairwise(command_line))
    return (
        PROGRAM in programs
        and "--simulation" in command_line
        and options.get("--port") == LOCAL_SUPERLINK_HTTP_API_PORT
        and Path(options.get("--log-file", "")).parts[-2:] == LOG_FILE
    )


def _background_superlinks() -> list[psutil.Process]:
    user = psutil.Process().username()
    return [
        process
        for process in psutil.process_iter(["cmdline", "username"])
        # Both are None where the operating system does not tell.
        if process.info["username"] == user
        and is_background_superlink(process.info["cmdline"] or [])
    ]


def _stop(process: psutil.Process) -> StoppedSuperLink:
    """Stop a SuperLink, then those of its processes that do not end with it."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = process.children(recursive=True)
    may_have_run = any(map(_executes_a_run, started))
    with suppress(psutil.NoSuchProcess):
        process.terminate()
    # The SuperLink ends its own processes; the rest is killed.
    remaining = [process, *started]
    deadline = time.monotonic() + STOP_SECONDS
    while (remaining := _running(remaining)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for late in remaining:
        with suppress(psutil.NoSuchProcess):
            late.kill()
    return StoppedSuperLink(process.pid, may_have_run)


def _executes_a_run(process: psutil.Process) -> bool:
    try:
        return any(Path(part).stem == SIMULATION_PROGRAM for part in process.cmdline()[:2])
    except psutil.Error:
        return False


def _running(processes: Collection[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended; one that awaits its parent's notice has."""
    running = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running
