"""The server's own device: that of the run, or the CPU where its machine lacks it."""

import logging

import pytest
import torch

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.server_app import serve


@pytest.fixture
def gpus(monkeypatch):
    """Let this machine have some GPUs."""

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
