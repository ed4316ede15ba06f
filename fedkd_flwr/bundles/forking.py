"""A node's processes: its SuperNode, and `fedkd superexec` with the messages that it executes.

The latter are forked from a process in which PyTorch is loaded already.

Flower 1.41 starts a new Python for each message (``--executor subprocess``). Its only executor
with prepared processes needs Kubernetes, and prepares none for ClientApps. So `start_forked` takes
the place of ``subprocess.Popen`` in Flower's executor, which goes on to write the command line.

The processes come from the standard library's fork server (`multiprocessing`): a process of one
thread that loads `fedkd_flwr.bundles.preloaded`, and nothing else. SuperExec's secret, connections
and threads are not in it. Environment and working directory are those of SuperExec.

If Flower moves a name that `run_superexec` replaces, it ends with an error.
"""

import atexit
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from fedkd_flwr.bundles.approved import digest_of
from fedkd_flwr.bundles.guard import FOLDER_VARIABLE
from fedkd_flwr.engines.superlink import quiet_environment
from strategies.core import flower

PRELOADED = ["__main__", "fedkd_flwr.bundles.preloaded"]
"""What the fork server imports; each process would import ``__main__`` otherwise."""


def fork_client_apps() -> None:
    """Start the fork server, and let Flower's executor start its processes from there."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    flower.replace("subprocess", SimpleNamespace(Popen=start_forked))
    atexit.register(stop_forked)


def start_forked(command: Sequence[str]) -> None:
    """Execute a command line of `run_client_app` in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.Process(target=run_forked, args=(list(command),)).start()


def stop_forked() -> None:
    """Ask the processes that are still running to stop: Python would wait for their end."""
    for process in multiprocessing.active_children():
        process.terminate()


def run_forked(command: list[str]) -> None:
    """Run a ClientApp in this process, which was forked for it.

    It draws new seeds from the system, as a new Python does. Python's own generator has done so.
    """
    import numpy as np
    import torch

    from fedkd_flwr.bundles.guard import run_client_app

    np.random.seed()
    torch.seed()
    sys.argv = command
    run_client_app()


CLIENT_APP_PROGRAM = "fedkd-clientapp"
"""The program that `fedkd_flwr.bundles.guard.run_client_app` is installed as."""


def new_folder(arguments: Sequence[str]) -> Path:
    """Return an empty folder for unpacked bundles, which this user alone can read.

    Each start with the same arguments, such as the address of the SuperNode, empties it.
    """
    folder: Path = flower.get_flwr_home() / "approved" / digest_of(repr(arguments).encode())[:16]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def run_superexec(arguments: Sequence[str], *, fresh_processes: bool = False) -> None:
    """Run Flower's ``flower-superexec`` for ClientApps of approved bundles alone.

    `fresh_processes` starts a new Python for each message, instead of forking one that has loaded
    PyTorch. So do other systems than Linux: libraries of macOS start threads, which a fork breaks.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = str(new_folder(arguments))
    client_app = flower.TaskType.CLIENT_APP
    # Other tasks would execute the bundle in processes that do not look at its digest.
    flower.AutoExecPlugin.supported_task_types = frozenset({client_app})
    flower.TASK_TYPE_TO_COMMAND.clear()
    flower.TASK_TYPE_TO_COMMAND[client_app] = CLIENT_APP_PROGRAM
    if sys.platform == "linux" and not fresh_processes:
        fork_client_apps()
    sys.argv = ["flower-superexec", *arguments]
    flower.flower_superexec()


POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
"""Seconds between two looks for messages, unless the operator sets them; Flower's default is 1."""

SECONDS_TO_END = 4.0
"""How long a process may take to end before it is killed."""


def start_node(options: Sequence[str], port: int, *, fresh_processes: bool = False) -> None:
    """Run a SuperNode that executes approved bundles alone, until one of its processes ends.

    Parameters
    ----------
    options : sequence of str
        Options of ``flower-supernode``: its SuperLink, key and node config.
    port : int
        Port of this machine on which SuperNode and `run_superexec` talk; 0 for a free one.
    fresh_processes : bool
        As for `run_superexec`.

    Raises
    ------
    RuntimeError
        When one of them has ended by itself.
    """
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # Its address may be another one at each start, but not its options.
    place = {FOLDER_VARIABLE: str(new_folder(list(options)))}
    environment = {**POLLING, **quiet_environment(), **place, "PATH": path}
    port = port or free_port()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with TemporaryDirectory(prefix="fedkd-node-") as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(secrets.token_bytes(32))
        shared = ["--superexec-auth-secret-file", str(secret)]
        isolated = ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
        fresh = ["--fresh-processes"] if fresh_processes else []
        address = ["--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
        commands = {
            "flower-supernode": [*options, *isolated, *shared],
            "fedkd": ["superexec", *fresh, *address, *shared],
        }
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name, arguments in commands.items():
                command = [str(programs / name), *arguments]
                processes[name] = subprocess.Popen(command, env=environment)
            while not (ended := [n for n, p in processes.items() if p.poll() is not None]):
                time.sleep(0.2)
        finally:
            end(processes.values())
    raise RuntimeError(f"{ended[0]} has ended; its last lines above say why.")


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def end(processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """End processes, by force if they take too long."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
