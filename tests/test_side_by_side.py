"""Runs of a sweep side by side: the same numbers, a killed process, an interrupted command."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import read_lines
from processes import MARK, started_by, wait_until

import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient
from fedkd_flwr.config import ConfigError
from fedkd_flwr.sweeps import run_sweep
from strategies.local import Local

SWEEP = """
[base]
dataset = "digits"
max-samples = 300
held-out-size = 40
public-size = 20
models = "mlp"
num-clients = 3
num-server-rounds = 6
local-epochs = 1
device = "cpu"

[grid]
strategy = ["local", "kt-pfl"]
seed = [0, 1]
"""

COLUMNS = ["round", "accuracy_mean", "loss_mean", "numbers_up", "moved_private_mean"]


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


@pytest.fixture
def killer(tmp_path):
    """Kill the process of one run in its second round, when the first has its checkpoint."""
    killed = []

    def on_round(name, row):
        if not killed and name.startswith("local-seed1") and row["round"] >= 2:
            lock = tmp_path / "beside" / name / "checkpoint" / "lock"
            killed.append(int(re.match(r"process (\d+) on", lock.read_text())[1]))
            os.kill(killed[0], signal.SIGKILL)

    return on_round


def numbers(runs):
    return {run.path.name: run.rounds[COLUMNS].to_dict() for run in runs}


def test_runs_that_cannot_be_parallel_are_refused(sweep, tmp_path):
    with pytest.raises(ConfigError, match="Parallel runs need the engine in-process"):
        run_sweep(sweep, tmp_path / "runs", "simulation", jobs=2)
    with pytest.raises(ConfigError, match="jobs = 0 is less than"):
        run_sweep(sweep, tmp_path / "runs", jobs=0)
    assert not (tmp_path / "runs").exists()


def test_a_method_that_other_processes_cannot_find_is_refused(sweep, tmp_path):
    fedkd_flwr.register("mine", Local, PersonalClient)
    with pytest.raises(ConfigError, match="mine is registered in this process, and parallel runs"):
        run_sweep(sweep, tmp_path / "runs", jobs=2, settings={"strategy": "mine"})
    assert not (tmp_path / "runs").exists()


def test_one_run_at_a_time_needs_no_ray(sweep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = {"strategy": "local", "num-server-rounds": 2}
    rounds = []
    runs = run_sweep(
        sweep, tmp_path / "runs", settings=settings, cpus_per_run=1,
        on_round=lambda name, row: rounds.append((name, row["round"])),
    )  # fmt: skip
    assert rounds == [(run.path.name, number) for run in runs for number in (1, 2)]
    assert [run.config["torch-threads"] for run in runs] == [1, 1]


@pytest.mark.slow
def test_a_killed_process_costs_its_run_alone(sweep, killer, tmp_path):
    told = []
    beside = run_sweep(
        sweep, tmp_path / "beside", on_run=told.append, jobs=2, on_round=killer,
        settings={"num-server-rounds": 40},
    )  # fmt: skip
    (failed,) = [progress.name for progress in told if progress.state == "failed"]
    assert [progress.state for progress in told].count("finished") == len(beside) == 3
    (failure,) = read_lines(tmp_path / "beside" / "failures.jsonl")
    assert failure["run"] == failed
    assert failure["error"].startswith("WorkerCrashedError: ")
    assert [run.config["torch-threads"] for run in beside] == [1, 1, 1]

    # What is left is a single run, which needs no Ray.
    told.clear()
    settings = {"num-server-rounds": 40}
    beside = run_sweep(
        sweep, tmp_path / "beside", on_run=told.append, cpus_per_run=1, settings=settings
    )
    assert sorted(progress.state for progress in told) == [
        "continued", "finished", "skipped", "skipped", "skipped",
    ]  # fmt: skip
    alone = run_sweep(sweep, tmp_path / "alone", cpus_per_run=1, settings=settings)
    assert numbers(beside) == numbers(alone)
    assert list(numbers(beside)) == list(numbers(alone))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at the processes of Linux")
def test_an_interrupted_command_leaves_no_process(sweep, tmp_path):
    env = {**os.environ, MARK: str(tmp_path)}
    command = [Path(sys.executable).parent / "fedkd", "sweep", sweep, "--jobs", "2"]
    command += ["--output-dir", tmp_path / "runs", "-c", "num-server-rounds=100000"]
    with subprocess.Popen(command, env=env, start_new_session=True) as process:
        wait_until(lambda: len(list((tmp_path / "runs").glob("*/rounds.jsonl"))) == 2)
        assert len(started_by(tmp_path)) > 3
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.returncode != 0
    wait_until(lambda: not started_by(tmp_path), seconds=20)
