"""The same run in one process and under Ray."""

import logging
import os
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from helpers import stopped

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines import deployment, run_deployment, simulation
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.runs import load_run
from fedkd_flwr.server_app import serve
from strategies.core.rounds import NEW_CLIENTS, Observer
from strategies.core.safeguard import SAFEGUARD_COLUMNS


def in_both_engines(settings, folder):
    """Return a run under Ray and the same in this process, and the rounds that Ray reported."""
    told = []
    simulated = fedkd_flwr.run(
        settings, engine="simulation", output_dir=folder / "ray", on_round=told.append
    )
    return simulated, fedkd_flwr.run(settings, output_dir=folder / "here"), told


def assert_same_numbers(simulated, here):
    assert simulated.finished
    assert simulated.description["data"] == here.description["data"]
    for column in ("accuracy_mean", "accuracy_std", "loss_mean", "numbers_up", "numbers_down"):
        assert list(simulated.rounds[column]) == list(here.rounds[column])
    np.testing.assert_equal(simulated.matrices, here.matrices)


def assert_same_new_clients(there, here):
    mine, expected = there.table(NEW_CLIENTS), here.table(NEW_CLIENTS)
    assert len(mine) and mine["failure"].isna().all()
    assert list(mine["partition_id"]) == list(expected["partition_id"])
    np.testing.assert_allclose(mine["loss"], expected["loss"], rtol=1e-5)


@pytest.mark.slow
def test_networks_and_a_forest_give_the_same_numbers_under_ray(small, tmp_path):
    """Parameters are compared in test_ray_cluster.py, prototypes in test_bundle.py."""
    settings = {
        **small,
        "strategy": "kt-pfl",
        "num-server-rounds": 3,
        "fraction-train": 0.75,
        "safeguard": "blend",
        "new-clients": 0.25,
        "models": "examples.own_model:TinyNet,sklearn.ensemble:RandomForestClassifier,mlp",
        "estimator-options": "RandomForestClassifier = {n_estimators = 5}",
    }
    simulated, here, told = in_both_engines(settings, tmp_path)
    assert [row["round"] for row in told] == list(here.rounds["round"])
    assert_same_numbers(simulated, here)
    assert_same_new_clients(simulated, here)
    assert "coefficients" in here.matrices
    guarded = list(SAFEGUARD_COLUMNS)
    assert simulated.clients[guarded].equals(here.clients[guarded])
    assert here.clients[guarded].notna().any().all()


def test_an_unknown_superlink_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))

    def refusal():
        with pytest.raises(ConfigError) as refused:
            run_deployment(read_config(small), "silo", print)
        return str(refused.value)

    add = "Add [superlink.silo] with its address there."
    file = tmp_path / "config.toml"
    assert refusal() == f"{file} has no SuperLink 'silo'; it has none. {add}"
    file.write_text('[superlink]\ndefault = "silos"\n[superlink.silos]\naddress = "1.2.3.4:5"\n')
    meant = "Did you mean deployment:silos?"
    assert refusal() == f"{file} has no SuperLink 'silo'; it has silos. {meant} {add}"


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["Round 1", "OSError: [Errno 28] No space left"], "did not finish; .* No space left"),
        (["INFO :  Round 1", ""], "did not finish; last output line: INFO :  Round 1"),
        (["The run stopped: no data", "Flower's traceback"], "The run stopped: no data"),
    ],
)
def test_a_deployment_that_crashes_or_is_stopped_is_no_success(lines, error, small, monkeypatch):
    """``flwr run --stream`` exits with 0 whatever became of the run."""

    def print_log(*lines):
        printed = [sys.executable, "-X", "utf8", "-c", f"print({chr(10).join(lines)!r})"]
        monkeypatch.setattr(deployment, "flwr_run_command", lambda *_: printed)
        run_deployment(read_config(small), "", print)

    with pytest.raises(RuntimeError, match=error):
        print_log(*lines)
    print_log("INFO :      Finished. Run directory: runs/first")


FAILING = """
import fedkd_flwr
from fedkd_flwr.clients.base import PersonalClient
from strategies.local import Local


class Failing(PersonalClient):
    def train(self, received, server_round, phase):
        if (server_round, self.partition_id) == (2, 1):
            {}["mine"]
        return super().train(received, server_round, phase)


method = fedkd_flwr.register("failing", Local, Failing)
"""


@pytest.mark.slow
def test_own_code_that_fails_stops_a_simulation(small, tmp_path, monkeypatch):
    (tmp_path / "failing_method.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {**small, "strategy": "failing_method:method", "models": "mlp"}
    said = r"Client 1 failed in own code: KeyError: 'mine' \(failing_method.py, line 10, in train\)"
    with pytest.raises(RuntimeError, match=said):
        fedkd_flwr.run(settings, engine="simulation", output_dir=tmp_path / "run")
    assert len(load_run(tmp_path / "run").round_rows) == 1


FLOWER = """
import pathlib, sys

command, asked = sys.argv[1], pathlib.Path(sys.argv[2])
asked.write_text(asked.read_text() + command + " ")
lines = ["Starting logstream for run_id `77`", "Round 1", "Round 2", "Finished. Run directory: r"]
if command == "run":
    print("Successfully started run 77", *lines[:2], "database is locked", sep=chr(10))
    sys.exit(1)
if command == "log":
    print(*lines, sep=chr(10))
if command == "list" and asked.read_text().count("list") > 1:
    print('{"success": true, "runs": [{"status": "running"}]}')
"""
"""What Flower says where a log is lost, and the SuperLink does not answer at first."""


def test_the_log_of_a_deployment_is_asked_for_again(small, monkeypatch, tmp_path):
    """`fedkd run` said that the run did not finish while it went on."""
    asked, shown = tmp_path / "asked", []
    asked.touch()

    def flower(command, *_):
        return [sys.executable, "-X", "utf8", "-c", FLOWER, command, str(asked)]

    monkeypatch.setattr(deployment, "flwr", flower)
    monkeypatch.setattr(deployment, "flwr_run_command", lambda *_: flower("run"))
    monkeypatch.setattr(deployment, "SECONDS_BETWEEN", 0)
    run_deployment(read_config(small), "", shown.append)
    assert asked.read_text().split() == ["run", "list", "list", "log"]
    assert [line for line in shown if "Round" in line] == ["Round 1", "Round 2"]
    monkeypatch.setattr(deployment, "ATTEMPTS", 0)
    with pytest.raises(RuntimeError, match="does not answer, and run 77 may go on"):
        run_deployment(read_config(small), "", shown.append)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["╭─ Error ───╮", "│ Invalid run config. │", "╰─────╯"], "Invalid run config."),
        (["INFO : Round 1", "ValueError: it is gone", "bye"], "ValueError: it is gone"),
        (["bye"], "there was no error message"),
    ],
)
def test_the_line_that_explains_a_failed_simulation_is_returned(lines, reason, tmp_path):
    command = [sys.executable, "-X", "utf8", "-c", "import sys; print(*sys.argv[1:], sep=chr(10))"]
    command += lines
    assert simulation._follow(command, dict(os.environ), tmp_path, Observer(), 0) == reason


REPEATS_A_ROUND = """
from pathlib import Path

rounds = Path("rounds.jsonl")
lines = rounds.read_text().splitlines(keepends=True)
for last in (2, 3):
    rounds.write_text("".join(lines[:last]))
    print("Round", last, flush=True)
Path("summary.json").write_text(Path("../whole/summary.json").read_text())
"""
"""Writes what a run of three rounds writes that is continued after the second."""


@pytest.fixture
def continued(small, tmp_path, monkeypatch):
    """Return a run of three rounds, and continue a run with a script instead of Flower."""
    settings = {**small, "strategy": "local", "models": "mlp", "local-iterations": 1}
    settings |= {"num-server-rounds": 3}
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    monkeypatch.setattr(simulation, "superlink", lambda _: nullcontext(dict(os.environ)))

    def go_on(path, script, **options):
        command = [sys.executable, "-c", script]
        monkeypatch.chdir(path)
        monkeypatch.setattr(simulation, "flwr_run_command", lambda *_: command)
        return fedkd_flwr.resume(path, engine="simulation", **options)

    return settings, whole, go_on


def test_a_simulation_that_dies_early_is_not_mistaken_for_the_run_before(continued):
    _, whole, go_on = continued
    with pytest.raises(RuntimeError, match=r"did not finish; last output line: OSError: no Ray"):
        go_on(whole.path, "raise OSError('no Ray')", num_server_rounds=4)


def test_a_round_that_a_simulation_repeats_is_told(continued, tmp_path):
    settings, _, go_on = continued
    path, told = stopped(settings, tmp_path / "run", last_round=3), []
    (path / "checkpoint" / "server.safetensors").unlink()
    assert go_on(path, REPEATS_A_ROUND, on_round=told.append).finished
    assert [row["round"] for row in told] == [3]


# ---- The server's own device ---------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch):
    def have(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)

    return have


@pytest.mark.parametrize(
    ("device", "number", "here"),
    [
        ("cpu", 1, "cpu"),
        ("auto", 1, "cuda"),
        ("auto", 0, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda", 0, "cpu"),
        ("cuda:1", 2, "cuda:1"),
        ("cuda:1", 1, "cpu"),
    ],
)
def test_the_server_takes_the_runs_device_where_it_has_one(device, number, here, gpus):
    gpus(number)
    run = read_config({"device": device}).run
    assert run.server_device == run.server_data_plan.device == here


@pytest.mark.parametrize("strategy", ["feddf", "pfedhn"])
def test_nodes_with_a_gpu_are_served_without_one(strategy, small, tmp_path, gpus, logged):
    gpus(0)
    flat = {**small, "strategy": strategy, "models": "mlp"}
    wanted = read_config({**flat, "device": "cuda", "output-dir": str(tmp_path / "there")})
    # Whatever its nodes compute on, the server has no device but the CPU.
    there = serve(InProcessGrid(client_app, 4, {**wanted.flat(), "device": "cpu"}), wanted)
    here = fedkd_flwr.run(flat, output_dir=tmp_path / "here")
    assert list(there.rounds["loss_mean"]) == list(here.rounds["loss_mean"])
    assert there.config["device"] == "cuda" and there.description["device"] == "cpu"
    assert "The server has no device cuda and computes on the CPU" in logged(logging.INFO)
