"""Processes that `fedkd superexec` forks from one that has loaded PyTorch."""

import importlib
import json
import multiprocessing
import os
import random
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedkd_flwr.bundles import forking
from fedkd_flwr.bundles.approved import FILE_VARIABLE
from fedkd_flwr.cli import app
from strategies.core import flower

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")

DIGESTS = ["0" * 64, "1" * 64]
"""Bundles that are approved when the first and when the second message arrives."""


@pytest.fixture
def no_server(monkeypatch):
    """Fork nothing: the commands that would be executed."""
    commands = []
    subprocess = flower.replaced("subprocess")
    monkeypatch.setattr(forkserver, "ensure_running", lambda: None)
    monkeypatch.setattr(forking.atexit, "register", lambda function: None)
    monkeypatch.setattr(forking, "start_forked", commands.append)
    yield commands
    flower.replace("subprocess", subprocess)


@on_linux
def test_flowers_executor_hands_its_command_line_to_the_fork(no_server):
    from flwr.supercore.superexec.executor import ExecutionSpec, get_executor

    forking.fork_client_apps()
    spec = ExecutionSpec(
        task_type=flower.TaskType.CLIENT_APP,
        runtime_api_address="127.0.0.1:9094",
        token="once",
        insecure=False,
        root_certificates_path="ca.crt",
        runtime_dependency_install=False,
        parent_pid=17,
        suppress_output=False,
        task_id=1,
    )
    get_executor("subprocess").launch(spec)
    ((_, *options),) = no_server
    assert options == [
        *("--runtime-api-address", "127.0.0.1:9094", "--token", "once"),
        *("--root-certificates", "ca.crt", "--parent-pid", "17"),
    ]


@pytest.mark.parametrize(
    ("platform", "options"), [("linux", ["--fresh-processes"]), ("darwin", [])]
)
def test_fresh_processes_are_flowers_own(platform, options, monkeypatch, no_server):
    asked = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(flower, "TASK_TYPE_TO_COMMAND", {})
    monkeypatch.setattr(flower.AutoExecPlugin, "supported_task_types", frozenset())
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setitem(vars(flower), "flower_superexec", lambda: asked.extend(sys.argv))
    before = flower.replaced("subprocess")
    given = ["superexec", "--insecure", *options, "--parent-pid", "5"]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert asked == ["flower-superexec", "--insecure", "--parent-pid", "5"]
    assert flower.replaced("subprocess") is before


def test_a_fork_server_with_cuda_serves_nobody(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA is initialized"):
        importlib.import_module(forking.PRELOADED[-1])


def probe(command):
    """Run in a forked process: write down in which state an app would start."""
    (path,) = map(Path, command)

    def describe():
        import numpy as np

        found = {
            "pid": os.getpid(),
            "server_threads": len(list(Path(f"/proc/{os.getppid()}/task").iterdir())),
            "loaded": sorted({"fedkd_flwr.client_app", "flwr.supernode.runtime"} & loaded),
            "python": random.random(),
            "numpy": np.random.random(),
            "torch": torch.rand(1).item(),
            "cuda": torch.cuda._is_in_bad_fork(),
            "sum": torch.ones(400, 400).mm(torch.ones(400, 400)).sum().item(),
            "argv": sys.argv,
            "folder": str(Path.cwd()),
            "variable": os.environ.get("FLWR_HOME"),
            "approved": sorted(flower.replaced("install_from_fab").__self__.approved),
        }
        path.write_text(json.dumps(found))

    loaded = set(sys.modules)
    vars(flower)["flwr_clientapp"] = describe
    forking.run_forked(["fedkd-clientapp", "--token", "once"])


@pytest.mark.slow
@on_linux
def test_each_message_gets_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    approvals = tmp_path / "approved-bundles"
    monkeypatch.setenv(FILE_VARIABLE, str(approvals))
    monkeypatch.setattr(forking, "run_forked", probe)
    torch.ones(400, 400).mm(torch.ones(400, 400))  # this process has a pool of threads
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(forking.PRELOADED)
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    try:
        for path, digest in zip(paths, DIGESTS, strict=True):
            approvals.write_text(f"{digest} tiny\n")
            forking.start_forked([str(path)])
            for process in multiprocessing.active_children():
                process.join(300)
    finally:
        forkserver._forkserver._stop()
    first, second = (json.loads(path.read_text()) for path in paths)
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    # The list is read again for each message: what was revoked meanwhile is refused.
    assert [first["approved"], second["approved"]] == [[digest] for digest in DIGESTS]
    for library in ("python", "numpy", "torch"):
        assert first[library] != second[library]
    for found in (first, second):
        assert found["server_threads"] == 1
        assert found["loaded"] == ["fedkd_flwr.client_app", "flwr.supernode.runtime"]
        assert found["cuda"] is False
        assert found["sum"] == 400**3
        assert found["argv"] == ["fedkd-clientapp", "--token", "once"]
        assert found["folder"] == str(tmp_path)
        assert found["variable"] == str(tmp_path / "home")
