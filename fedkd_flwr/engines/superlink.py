"""The SuperLink that a simulation uses and stops at its end, the app it runs, and Flower's own."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import psutil
import tomli_w

from fedkd_flwr.config import Configuration
from strategies.core import flower
from strategies.core.flower import LOCAL_SUPERLINK_HTTP_API_PORT

BOX = " │┃╭╮╰╯─━"  # characters of the box that Flower draws around an error message
START_SECONDS = 60.0  # how long a SuperLink may take to start


@contextmanager
def superlink(folder: Path) -> Iterator[dict[str, str]]:
    """Start a local SuperLink on free ports, and stop it at the end; yield its environment.

    Flower would start one itself on a fixed port and leave it running, with the working directory
    and environment of its first caller.
    """
    http_port, control_port = free_port(), free_port()
    env = {
        **quiet_environment(),
        "FLWR_HOME": str(folder),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": http_port,
        "FLWR_LOCAL_CONTROL_API_PORT": control_port,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # Child processes look for Flower's programs on the path.
        "PYTHONPATH": os.pathsep.join(own_paths()),
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


def quiet_environment() -> dict[str, str]:
    """Return the environment for Flower's programs: no telemetry and no check for updates."""
    return {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **os.environ}


def own_paths() -> list[str]:
    """Return the folders outside the installation where this process finds modules."""
    installed = (Path(sys.prefix), Path(sys.base_prefix))
    paths = [Path(path).absolute() for path in sys.path]
    return [str(p) for p in paths if not any(p.is_relative_to(folder) for folder in installed)]


def free_port() -> str:
    """Return the number of a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _wait_until_healthy(process: "subprocess.Popen[bytes]", port: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        # A server that is not ready yet answers too late, or resets the connection.
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("Flower's SuperLink did not start on this machine.")


APP_FOLDER = Path(__file__).resolve().parent.parent.parent
"""The folder with pyproject.toml. If the project is installed as a package, it has none."""


def copy_app(folder: Path) -> Path:
    """Copy the files of the app to a folder, and return the folder."""
    files = {path.relative_to(APP_FOLDER).as_posix(): path for path in _files_below(APP_FOLDER)}
    for name in flower.filter_paths_for_publish(files):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[name], copy)
    return folder


def flwr(*arguments: str) -> list[str]:
    """Return a command of Flower."""
    return [str(Path(sys.executable).parent / "flwr"), *arguments]


def flwr_run_command(folder: Path, configuration: Configuration, *superlink: str) -> list[str]:
    """Return the command that starts a run; app and run config are put in a temporary folder."""
    preset = folder / "run.toml"
    preset.write_text(tomli_w.dumps(configuration.for_flower()))
    app = str(copy_app(folder / "app"))
    return flwr("run", app, *superlink, "--stream", "--run-config", str(preset))


def _files_below(root: Path) -> Iterator[Path]:
    """Yield all files but those in hidden folders and environments, and links as Flower does."""
    for parent, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(parent, name, "pyvenv.cfg").exists()
        ]
        paths = (Path(parent, name) for name in names)
        yield from (path for path in paths if not path.is_symlink())


PROGRAM = "flower-superlink"  # Flower's program, as it stands in the command line

LOG_FILE = ("local-superlink", "superlink.log")
"""Last parts of the path that Flower passes as ``--log-file``."""

STOP_SECONDS = 20.0  # how long processes may take to end before they are killed
ADDRESS = f"127.0.0.1:{LOCAL_SUPERLINK_HTTP_API_PORT}"  # where ``flwr run`` looks for its SuperLink


def stop_background_superlinks() -> list[int]:
    """Stop the background SuperLink of this user and what it started; return its process id."""
    return [_stop(process) for process in _background_superlinks()]


def is_background_superlink(command_line: list[str]) -> bool:
    """Return whether a command line is that of the SuperLink that ``flwr run`` starts."""
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


def _stop(process: psutil.Process) -> int:
    """Stop a SuperLink, then those of its processes that do not end with it."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = process.children(recursive=True)
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
    return process.pid


def _running(processes: Collection[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended; one that awaits its parent's notice has."""
    running = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running
