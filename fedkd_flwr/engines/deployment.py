"""A run on a SuperLink with its SuperNodes. It is checked before Flower starts it."""

import difflib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import tomli_w

from fedkd_flwr.config import ConfigError, Configuration, require_importable
from fedkd_flwr.config.toml_files import load_toml
from fedkd_flwr.engines.superlink import APP_FOLDER, flwr_run_command, quiet_environment
from strategies.core.flower import get_flwr_home
from strategies.core.printable_text import without_colors

DEPLOYMENT = "deployment"
"""Name of the engine. Alone it is Flower's default SuperLink; ``deployment:silos`` names one."""

STOPPED = "The run stopped: "
"""Precedes the sentence with which the ServerApp ends a run."""

FINISHED = "Finished. Run directory: "
"""Begins the line of the ServerApp that only a finished run logs."""


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
    folders are on that machine. `on_line` is called with each line of Flower's log. Raises
    `ConfigError` if this is not a checkout of the project, from which Flower takes the app, if
    Flower does not know the SuperLink, or if the nodes could not import the method; `RuntimeError`
    if the run fails, is stopped or does not finish; with the line of the log that says why, or else
    the last one.
    """
    if not (APP_FOLDER / "pyproject.toml").exists():
        raise ConfigError(
            "Deployments start from a clone of the project; this is an installed package."
        )
    require_superlink(superlink)
    require_importable(configuration, "a deployment has")
    with tempfile.TemporaryDirectory(prefix="fedkd-") as folder:
        preset = Path(folder) / "run.toml"
        preset.write_text(tomli_w.dumps(configuration.for_flower()))
        command = flwr_run_command(Path(folder))
        command += [superlink] if superlink else []
        command += ["--stream", "--run-config", str(preset)]
        reason, last, finished = "", "", False
        with subprocess.Popen(
            command,
            env=quiet_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            for line in map(without_colors, process.stdout or []):
                last = line.strip() or last
                on_line(line.rstrip())
                if STOPPED in line:
                    reason = line.partition(STOPPED)[2].strip()
                finished |= FINISHED in line
    if reason:
        raise RuntimeError(f"{STOPPED}{reason}")
    if process.returncode:
        raise RuntimeError(f"flwr run failed; last output line: {last}")
    # Flower shows the log of a run that crashed or was stopped as that of any other.
    if not finished:
        raise RuntimeError(f"the run did not finish; last output line: {last}")
