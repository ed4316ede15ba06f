"""The study works with the installed package."""

import ast
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from damped_study.method import Perceptron

import fedkd_flwr
from fedkd_flwr.testing import check_method

HERE = Path(__file__).parent
PRESET = HERE / "three_sites.toml"
METHOD = "damped_study.method:damped"
PUBLIC = {
    "fedkd_flwr",
    "fedkd_flwr.clients.parameters",
    "fedkd_flwr.testing",
    "strategies.core.plan",
    "strategies.parameters",
}
"""What the guide on custom methods names."""


def run(folder, **changes):
    return fedkd_flwr.run(PRESET, output_dir=folder, device="cpu", torch_threads=1, **changes)


def test_the_method_keeps_the_contract():
    check_method(METHOD)


def test_the_preset_runs_stops_and_goes_on(tmp_path):
    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    whole = run(tmp_path / "whole")
    assert whole.config["damped.step"] == 0.8
    assert set(whole.clients["model"]) == {"damped_study.method:Perceptron"}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", on_round=stop)
    resumed = fedkd_flwr.resume(tmp_path / "run", allow_code="damped_study")
    assert list(resumed.clients["loss"]) == list(whole.clients["loss"])


def test_it_is_compared_with_fedavg_and_local(tmp_path):
    runs = [run(tmp_path / "damped")]
    others = tomllib.loads(PRESET.read_text())
    del others["damped"]
    for strategy in ("fedavg", "local"):
        changes = {"strategy": strategy, "device": "cpu", "torch-threads": 1}
        runs.append(fedkd_flwr.run({**others, **changes}, output_dir=tmp_path / strategy))
    whole_way = run(tmp_path / "whole-way", **{"damped.step": 1.0})
    np.testing.assert_allclose(
        whole_way.clients["train_loss"], runs[1].clients["train_loss"], rtol=1e-5
    )
    assert list(runs[0].clients["loss"]) != list(whole_way.clients["loss"])
    comparison = fedkd_flwr.compare(runs)
    assert set(comparison.table.index) == {METHOD, "fedavg", "local"}


def test_a_model_comes_back_for_new_samples(tmp_path):
    run(tmp_path / "run", models_dir=str(tmp_path / "models"))
    model = fedkd_flwr.load_model(tmp_path / "models/0.safetensors", Perceptron)
    assert model(torch.zeros(2, 13)).shape == (2, 3)


def imported_modules():
    for file in HERE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module


def test_it_uses_the_public_api_alone():
    ours = {name for name in imported_modules() if name.startswith(("fedkd_flwr", "strategies"))}
    assert ours == PUBLIC
