"""The SuperLink that a simulation on this machine uses and stops at its end."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60.0
"""How long a SuperLink may take to start."""


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
    """Return the environment for Flower's programs: no telemetry and no check for updates.

    A user who has set these variables decides.
    """
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
