"""Where a run takes place: in this process, or in Flower's Ray simulation."""

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import (
    ConfigError,
    Configuration,
    read_config,
    read_toml,
)
from fedkd_flwr.grid import InProcessGrid
from fedkd_flwr.runs import Run, default_run_directory, load_run
from fedkd_flwr.server_app import check_run, serve
from strategies.core.slices import kebab_case

RoundListener = Callable[[Mapping[str, Any]], None]
"""Is called with each finished round's row."""

APP_FOLDER = Path(__file__).resolve().parent.parent
"""The Flower app: the folder with pyproject.toml."""

SUPERLINK_START_SECONDS = 60.0
"""How long a SuperLink may take to start."""


def run(
    preset: str | Path | Mapping[str, Any] | None = None,
    *,
    engine: str = "in-process",
    output_dir: str | Path | None = None,
    on_round: RoundListener | None = None,
    **settings: Any,
) -> Run:
    """Run a method and return the finished run.

    Parameters
    ----------
    preset : str, Path or mapping, optional
        A TOML preset, or a flat run config; defaults where left out.
    engine : str
        ``in-process`` or ``simulation``.
    output_dir : str or Path, optional
        The run directory; a new one under ``./runs`` if left out.
    on_round : callable, optional
        Is called with each finished round's row.
    **settings
        Further run config values, with underscores for dashes; names with dots through a
        dictionary, ``**{"kt-pfl.rho": 0.7}``.

    Returns
    -------
    Run
        The finished run, with the frames `rounds` and `clients` and the `summary`.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        In one sentence, before any client works.
    """
    base = preset if isinstance(preset, Mapping) else read_toml(Path(preset)) if preset else {}
    values = {**base, **{kebab_case(name): value for name, value in settings.items()}}
    if output_dir is not None:
        values["output-dir"] = str(output_dir)
    configuration = resolve_output(read_config(values), Path.cwd() / "runs")
    check_run(configuration)
    return run_on(engine, configuration, on_round)


def resume(
    path: str | Path, *, engine: str = "in-process", on_round: RoundListener | None = None
) -> Run:
    """Continue a stopped run and return it finished.

    Parameters
    ----------
    path : str or Path
        The run directory.
    engine : str
        ``in-process`` or ``simulation``.
    on_round : callable, optional
        Is called with each finished round's row.
    """
    configuration = resumed(path)
    check_run(configuration)
    return run_on(engine, configuration, on_round)


def run_on(engine: str, configuration: Configuration, on_round: RoundListener | None) -> Run:
    """Run on the engine of a name."""
    if engine == "in-process":
        return run_in_process(configuration, on_round)
    if engine == "simulation":
        return run_simulation(configuration, on_round=on_round)
    raise ConfigError(f"engine = {engine!r} is none of the allowed in-process, simulation.")


def resolve_output(configuration: Configuration, parent: Path) -> Configuration:
    """Return the config with absolute folders, and a new run directory if it names none.

    Clients keep their memory in the run directory, so that the run can be resumed.
    """
    run = configuration.run
    named = run.output_dir
    path = Path(named).expanduser() if named else default_run_directory(configuration, parent)
    path = path.resolve()
    data_root = _absolute(run.data.data_root)
    update = {
        "data": run.data.model_copy(update={"data_root": data_root}),
        "output_dir": str(path),
        "models_dir": _absolute(run.models_dir),
        "state_dir": _absolute(run.state_dir) or str(path / "checkpoint" / "clients"),
    }
    return configuration.model_copy(update={"run": run.model_copy(update=update)})


def _absolute(folder: str) -> str:
    return str(Path(folder).expanduser().resolve()) if folder else ""


def resumed(path: str | Path) -> Configuration:
    """Return the config with which a stopped run is continued.

    Parameters
    ----------
    path : str or Path
        The run directory; it may have been moved.

    Raises
    ------
    RunDirectoryError
        If there is no run, or it is finished.
    """
    stopped = load_run(path)
    stopped.require_unfinished()
    recorded = stopped.config
    own_state = str(Path(recorded["output-dir"]) / "checkpoint" / "clients")
    changes: dict[str, Any] = {"resume": True, "output-dir": str(stopped.path)}
    if recorded["state-dir"] in ("", own_state):
        changes["state-dir"] = str(stopped.path / "checkpoint" / "clients")
    return read_config({**recorded, **changes})


def run_in_process(
    configuration: Configuration,
    on_round: RoundListener | None = None,
    clients: int | None = None,
    log_level: int = logging.WARNING,
) -> Run:
    """Run a method with all clients in this process.

    Parameters
    ----------
    configuration : Configuration
        The validated run config.
    on_round : callable, optional
        Is called with each finished round's row.
    clients : int, optional
        Clients to start, the config's N if left out.
    log_level : int
        Lowest level of Flower's log that is shown.
    """
    flat = configuration.flat()
    grid = InProcessGrid(client_app, clients or configuration.run.plan.num_clients, flat)
    with flower_log_level(log_level):
        return serve(grid, configuration, on_round)


def run_simulation(
    configuration: Configuration,
    on_round: RoundListener | None = None,
    on_line: Callable[[str], None] | None = None,
    clients: int | None = None,
    resources: Mapping[str, float] | None = None,
) -> Run:
    """Run a method with ``flwr run`` under Ray, on a SuperLink of its own.

    Parameters
    ----------
    configuration : Configuration
        The validated run config, with an absolute output directory.
    on_round : callable, optional
        Is called with each finished round's row.
    on_line : callable, optional
        Is called with each line of Flower's log.
    clients : int, optional
        SuperNodes to simulate, the config's N if left out.
    resources : mapping, optional
        Flower's federation config, such as ``client-resources-num-gpus``.

    Raises
    ------
    RuntimeError
        If the run does not come to its end; with the last line of the log.
    """
    if not (APP_FOLDER / "pyproject.toml").exists():
        raise ConfigError(
            "The simulation engine runs from a checkout of the project; use in-process."
        )
    directory = Path(configuration.run.output_dir)
    federation = {
        "num-supernodes": clients or configuration.run.plan.num_clients,
        "client-resources-num-cpus": 1,
        **(resources or {}),
    }
    with tempfile.TemporaryDirectory(prefix="fedkd-") as folder, superlink(Path(folder)) as env:
        preset = Path(folder) / "run.toml"
        preset.write_text(tomli_w.dumps(configuration.flat()))
        command = [str(Path(sys.executable).parent / "flwr"), "run", str(APP_FOLDER)]
        command += ["--stream", "--run-config", str(preset), "--federation-config"]
        command += [" ".join(f"{name}={value}" for name, value in federation.items())]
        last_line = _follow(command, env, directory, on_round, on_line)
    finished = load_run(directory) if (directory / "config.json").exists() else None
    if finished is None or not finished.finished:
        raise RuntimeError(f"The simulation did not finish; its last words: {last_line}")
    return finished


def _follow(
    command: list[str],
    env: dict[str, str],
    directory: Path,
    on_round: RoundListener | None,
    on_line: Callable[[str], None] | None,
) -> str:
    """Run ``flwr run``, pass on its log and the rounds that appear; return the telling line."""
    told, telling = 0, "it said nothing"
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or []:
            line = line.rstrip()
            if on_line:
                on_line(line)
            if "Error" in line:
                telling = line.strip()
            if on_round is None or not (directory / "rounds.jsonl").exists():
                continue
            rows = load_run(directory).rounds.to_dict("records")
            for row in rows[told:]:
                on_round({str(name): value for name, value in row.items()})
            told = len(rows)
    return telling


@contextmanager
def superlink(folder: Path) -> Iterator[dict[str, str]]:
    """Start a local SuperLink on free ports, and stop it at the end.

    Flower would start one itself on a fixed port and leave it running, with the working
    directory and environment of its first caller.

    Parameters
    ----------
    folder : Path
        Becomes its FLWR_HOME.

    Yields
    ------
    dict of str to str
        The environment in which ``flwr`` finds it.
    """
    http_port, control_port = str(_free_port()), str(_free_port())
    env = {
        **os.environ,
        "FLWR_HOME": str(folder),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": http_port,
        "FLWR_LOCAL_CONTROL_API_PORT": control_port,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Child processes look for Flower's programs on the path.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--control-api-address", f"127.0.0.1:{control_port}"]
    command += ["--host", "127.0.0.1", "--port", http_port]
    with (folder / "superlink.log").open("w") as log_file:
        process = subprocess.Popen(command, env=env, stdout=log_file, stderr=log_file)
        try:
            _wait_until_healthy(process, http_port)
            yield env
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(process: "subprocess.Popen[bytes]", port: str) -> None:
    deadline = time.monotonic() + SUPERLINK_START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise RuntimeError("Flower's SuperLink did not start on this machine.")


@contextmanager
def flower_log_level(level: int) -> Iterator[None]:
    """Set the lowest level of Flower's log that is shown, and put it back afterwards."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
