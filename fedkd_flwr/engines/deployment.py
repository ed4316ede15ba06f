"""A run on a SuperLink with its SuperNodes. It is checked before Flower starts it."""

import difflib
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedkd_flwr.config import ConfigError, Configuration, require_importable
from fedkd_flwr.config.toml_files import load_toml
from fedkd_flwr.engines.superlink import (
    APP_FOLDER,
    BOX,
    flwr,
    flwr_run_command,
    quiet_environment,
)
from strategies.core.flower import get_flwr_home
from strategies.core.printable_text import without_colors

DEPLOYMENT = "deployment"
"""Name of the engine. Alone it is Flower's default SuperLink; ``deployment:silos`` names one."""

STOPPED = "The run stopped: "
"""Precedes the sentence with which the ServerApp ends a run."""

FINISHED = "Finished. Run directory: "
"""Begins the line of the ServerApp that only a finished run logs."""

STARTED, LOG_BEGINS = r"started run (\d+)", "Starting logstream"
"""How Flower names a new run, and what it says before the lines of a run."""

ATTEMPTS, SECONDS_BETWEEN = 6, 5.0
"""How often a SuperLink is asked that does not answer."""


def deployed_to(engine: str) -> str | None:
    """Return the SuperLink that an engine names, empty for the default; None for others."""
    name, _, superlink = engine.partition(":")
    return superlink if name == DEPLOYMENT else None


def require_superlink(name: str) -> None:
    """Refuse a SuperLink that Flower does not know.

    An empty name stands for Flower's default. Raises `ConfigError` with the names in Flower's
    ``config.toml``.
    """
    file = get_flwr_home() / "config.toml"
    content = load_toml(file, "Flower config") if file.exists() else {}
    tables = content.get("superlink", {})
    names = [known for known, table in tables.items() if isinstance(table, dict)]
    if not name or name in names:
        return
    close = difflib.get_close_matches(name, names, n=1)
    meant = f" Did you mean deployment:{close[0]}?" if close else ""
    raise ConfigError(
        f"{file} has no SuperLink {name!r}; it has {', '.join(names) or 'none'}.{meant} "
        f"Add [superlink.{name}] with its address there."
    )


def run_deployment(
    configuration: Configuration, superlink: str, on_line: Callable[[str], None]
) -> None:
    """Start a run with ``flwr run`` and show its log until it ends.

    The run directory is written on the SuperLink's machine. Data stay on the nodes. The config's
    folders are on that machine. `on_line` is called with each line of Flower's log. If the log ends
    while the run goes on, it is asked for again. Raises `ConfigError` if this is not a checkout of
    the project, from which Flower takes the app, if Flower does not know the SuperLink, or if the
    nodes could not import the method; `RuntimeError` if the run fails, is stopped or does not
    finish, or if the SuperLink does not answer; with the line of the log that says why, or else the
    last one.
    """
    if not (APP_FOLDER / "pyproject.toml").exists():
        raise ConfigError(
            "Deployments start from a clone of the project; this is an installed package."
        )
    require_superlink(superlink)
    require_importable(configuration, "a deployment has")
    named, log = [superlink] if superlink else [], RunLog(on_line)
    with tempfile.TemporaryDirectory(prefix="fedkd-") as folder:
        status = log.follow(flwr_run_command(Path(folder), configuration, *named))
    if status and not log.run_id and not log.reason:
        raise RuntimeError(f"flwr run failed; last output line: {log.last}")
    while log.run_id and not log.is_over and is_going_on(log.run_id, named):
        time.sleep(SECONDS_BETWEEN)
        log.follow(flwr("log", log.run_id, *named, "--stream"))
    if log.reason:
        raise RuntimeError(f"{STOPPED}{log.reason}")
    # Flower shows the log of a run that crashed or was stopped as that of any other.
    if not log.finished:
        raise RuntimeError(f"the run did not finish; last output line: {log.last}")


@dataclass
class RunLog:
    """The log of a run, which Flower shows from its beginning each time that it is asked for.

    `on_line` gets each line once. `reason` is why the ServerApp stopped the run, if it says so,
    `last` the last line with words. `shown` are the lines of the run itself so far.
    """

    on_line: Callable[[str], None]
    run_id: str = ""
    reason: str = ""
    last: str = ""
    finished: bool = False
    shown: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the run says that it has ended."""
        return self.finished or bool(self.reason)

    def follow(self, command: Sequence[str]) -> int:
        """Show what a command of Flower says that was not shown yet; return its exit status."""
        with subprocess.Popen(
            command,
            env=quiet_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            of_run: list[str] | None = None
            for line in map(without_colors, process.stdout or []):
                if of_run is None:
                    of_run = [] if LOG_BEGINS in line else None
                    self._read(line)
                    continue
                if self.shown[len(of_run) : len(of_run) + 1] != [line]:
                    self._read(line)
                of_run.append(line)
        self.shown = max(self.shown, of_run or [], key=len)
        return process.returncode

    def _read(self, line: str) -> None:
        self.last = line.strip(f"{BOX}\n") or self.last
        self.on_line(line.rstrip())
        if started := re.search(STARTED, line):
            self.run_id = started[1]
        if STOPPED in line:
            self.reason = line.partition(STOPPED)[2].strip()
        self.finished |= FINISHED in line


def is_going_on(run_id: str, superlink: Sequence[str]) -> bool:
    """Return whether a SuperLink has not ended a run.

    Raises `RuntimeError` if it does not answer.
    """
    command = flwr("list", *superlink, "--run-id", run_id, "--format", "json")
    for _ in range(ATTEMPTS):
        asked = subprocess.run(
            command, env=quiet_environment(), capture_output=True, text=True, check=False
        )
        with suppress(ValueError, LookupError, TypeError):
            (run,) = json.loads(asked.stdout)["runs"]
            return not str(run["status"]).startswith("finished")
        time.sleep(SECONDS_BETWEEN)
    name = " ".join(superlink)
    raise RuntimeError(
        f"the SuperLink does not answer, and run {run_id} may go on. When it answers again, "
        f"`flwr list {name}` shows the run, and `flwr log {run_id} {name}` its log."
    )
