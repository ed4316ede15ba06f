"""A run on a SuperLink with its SuperNodes, checked before Flower has it."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import tomli_w

from fedkd_flwr.config import ConfigError, Configuration, require_importable
from fedkd_flwr.engines.simulation import APP_FOLDER

DEPLOYMENT = "deployment"
"""Name of the engine, alone for Flower's default SuperLink: ``deployment:silos`` names another."""

STOPPED = "The run stopped: "
"""Stands before the sentence with which the ServerApp ends a run."""


def deployed_to(engine: str) -> str | None:
    """Return the SuperLink that an engine names, empty for the default; None for others.

    Parameters
    ----------
    engine : str
        As given to ``fedkd run --engine``.
    """
    name, _, superlink = engine.partition(":")
    return superlink if name == DEPLOYMENT else None


def run_deployment(
    configuration: Configuration, superlink: str, on_line: Callable[[str], None]
) -> None:
    """Start a run with ``flwr run`` and follow it to its end.

    The run directory is written where the SuperLink is, the data and models lie in the nodes.

    Parameters
    ----------
    configuration : Configuration
        The validated run config; its folders are those of the SuperLink's machine.
    superlink : str
        Name of the connection in Flower's ``config.toml``; empty for the default.
    on_line : callable
        Is called with each line of Flower's log.

    Raises
    ------
    ConfigError
        If this is no checkout of the project, from which Flower takes the app, or its nodes
        could not find the method.
    RuntimeError
        If the run does not come to its end; with the line that says why.
    """
    if not (APP_FOLDER / "pyproject.toml").exists():
        raise ConfigError("A deployment is started from a checkout of the project.")
    require_importable(configuration, "a deployment has")
    with tempfile.TemporaryDirectory(prefix="fedkd-") as folder:
        preset = Path(folder) / "run.toml"
        preset.write_text(tomli_w.dumps(configuration.for_flower()))
        command = [str(Path(sys.executable).parent / "flwr"), "run", str(APP_FOLDER)]
        command += [superlink] if superlink else []
        command += ["--stream", "--run-config", str(preset)]
        telling, last = "", ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout or []:
                last = line.strip() or last
                on_line(line.rstrip())
                if STOPPED in line:
                    telling = line.partition(STOPPED)[2].strip()
    if telling:
        raise RuntimeError(f"{STOPPED}{telling}")
    if process.returncode:
        raise RuntimeError(f"flwr run failed; its last words: {last}")
