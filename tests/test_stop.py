"""`fedkd stop` stops the SuperLink that `flwr run` leaves running, and nothing else."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from processes import FLWR, MARK, app_folder, output_of, started_by, stop_all, wait_until
from typer.testing import CliRunner

import fedkd_flwr.engines.superlink as superlinks
from fedkd_flwr.cli import app
from fedkd_flwr.engines.superlink import free_port, is_background_superlink, superlink

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(sys.executable).parent
PORT = superlinks.LOCAL_SUPERLINK_HTTP_API_PORT
MANAGED = (
    "/venv/bin/python /venv/bin/flower-superlink --insecure --simulation --isolation subprocess "
    f"--control-api-address 127.0.0.1:39093 --host 127.0.0.1 --port {PORT} "
    "--log-file /home/me/.flwr/local-superlink/superlink.log"
)


def fedkd_stop():
    result = CliRunner().invoke(app, ["stop"])
    assert result.exit_code == 0, result.output
    return result.stdout


def start_idle(*arguments):
    script = "import time; print('up', flush=True); time.sleep(300)"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    return process


def test_flowers_own_command_line_is_recognized():
    assert is_background_superlink(MANAGED.split())
    assert is_background_superlink(MANAGED.split()[1:])


@pytest.mark.parametrize(
    "command_line",
    [
        "",
        "vim /home/me/.flwr/local-superlink/superlink.log",
        MANAGED.replace("flower-superlink", "flower-supernode"),
        MANAGED.replace("--simulation", ""),
        MANAGED.replace(PORT, "39555"),
        MANAGED.replace("local-superlink/superlink.log", "silos/superlink.log"),
        MANAGED.partition("--log-file")[0],
        f"bash -c {MANAGED}",
    ],
)
def test_other_command_lines_are_not_recognized(command_line):
    assert not is_background_superlink(command_line.split())


def test_nothing_to_stop_is_no_error(monkeypatch):
    monkeypatch.setattr(superlinks.psutil, "process_iter", lambda names: [])
    assert (
        fedkd_stop() == f"No background SuperLink of `flwr run` is running on 127.0.0.1:{PORT}.\n"
    )


def test_the_process_is_stopped_and_its_neighbor_is_not(monkeypatch):
    mine, other = start_idle("mine"), start_idle("other")
    try:
        monkeypatch.setattr(superlinks, "is_background_superlink", lambda line: "mine" in line)
        stopped = f"Stopped the SuperLink on 127.0.0.1:{PORT} (process {mine.pid}), and its runs.\n"
        assert fedkd_stop() == stopped
        assert mine.wait() != 0 and other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.communicate()


def test_a_process_of_another_user_is_refused_in_one_sentence(monkeypatch):
    def refuse():
        raise psutil.AccessDenied(7)

    monkeypatch.setattr(superlinks, "stop_background_superlinks", refuse)
    result = CliRunner().invoke(app, ["stop"])
    assert result.exit_code == 1
    assert "Process 7, the SuperLink on" in result.stderr and "permission denied" in result.stderr


@pytest.mark.slow
def test_the_superlink_of_flwr_run_is_stopped_and_that_of_a_simulation_is_not(
    tmp_path, monkeypatch
):
    """The SuperLinks are real; the fixed port is another than that of this machine's user."""
    mark = str(tmp_path)
    port, control_port = free_port(), free_port()
    env = {
        **os.environ,
        MARK: mark,
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_LOCAL_CONTROL_API_PORT": control_port,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    typed = partial(output_of, env=env, cwd=tmp_path)
    try:
        with superlink(tmp_path) as of_simulation:
            # Any run will do: it is under way, or has failed, when its SuperLink is stopped.
            typed(*FLWR, "run", app_folder(), "--run-config", "num-server-rounds=1")
            assert started_by(mark)
            told = typed(sys.executable, "-m", "fedkd_flwr.cli", "stop")
            assert told.startswith(f"Stopped the SuperLink on 127.0.0.1:{port} (process ")
            wait_until(lambda: not started_by(mark), 30)
            monkeypatch.setattr(superlinks, "LOCAL_SUPERLINK_HTTP_API_PORT", port)
            assert superlinks.stop_background_superlinks() == []
            running = of_simulation["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
            # psutil gives None for a process that it may not read, or that has just ended.
            command_lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
            assert any(running in command_line for command_line in command_lines)
    finally:
        stop_all(mark)
