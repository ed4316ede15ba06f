"""Programs that tests start, and the processes that these start in turn."""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedkd_flwr.engines.superlink import copy_app

MARK = "STARTED_BY_THE_TEST"
"""A variable of the environment that all children inherit."""

FLWR = [
    sys.executable,
    "-c",
    "from flwr.cli import app, local_superlink;"
    "local_superlink.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300;"
    "app.app()",
]
"""Flower's `flwr`, whose SuperLink has 5 minutes to start: 15 seconds are too few beside tests."""


def wait_until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


def started_by(test):
    """Return the ids of the processes whose environment has the mark `test`."""
    mark = f"{MARK}={test}".encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        # Others' processes, and those that have just ended.
        with suppress(OSError):
            if mark in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def stop_all(test):
    """Stop the processes that `started_by` finds, those that do not want to as well."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        for process_id in started_by(test):
            with suppress(ProcessLookupError):
                os.kill(process_id, number)
        with suppress(AssertionError):
            wait_until(lambda: not started_by(test), seconds)


@functools.cache
def app_folder():
    """Return a copy of the app, which Flower reads faster than a clone with an environment."""
    parent = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    # The temporary folder's own name may have an underscore, which Flower refuses in an app's name.
    return copy_app(parent / "app")


def output_of(*command, env, cwd):
    ended = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def new_environment(folder, *package):
    """Create an environment, install one package as `uv pip install` is told to, return its Python.

    All other packages are those of the tests, so none is downloaded. Its byte code is that of the
    test environment; compiling all of PyTorch takes half a minute.
    """
    uv = shutil.which("uv")
    assert uv, "pip install uv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *package]
    subprocess.run(install, check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    # The editable installation of the project is not read: .pth files of other folders are not.
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return python
