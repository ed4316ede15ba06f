"""Custom models, methods and data in other processes: under Ray, and over TLS."""

import federation as fed
import numpy as np
import pytest
from federation import Federation
from test_engines import assert_same_numbers, in_both_engines

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.server_app import serve

pytestmark = pytest.mark.slow

OWN = {
    "strategy": "examples.own_method:nearest",
    "models": "mlp,examples.own_model:TinyNet",
}

PERCEPTRON = "examples.own_data:Perceptron"


def test_ray_gives_the_numbers_of_one_process(small, tmp_path):
    settings = {**small, **OWN, "nearest.sharpness": 3.0}
    simulated, here, _ = in_both_engines(settings, tmp_path)
    assert_same_numbers(simulated, here)
    assert simulated.config["nearest.sharpness"] == 3.0


def test_a_federation_gives_the_numbers_of_one_process(tmp_path):
    # A round of a table takes no time; held out are 40 of the 178 wines.
    table = {"dataset": "examples.own_data:wines", "max-samples": 0, "held-out-size": 40}
    settings = {**fed.SMALL, **OWN, **table, "num-clients": 2, "models": f"mlp,{PERCEPTRON}"}
    with Federation(tmp_path / "federation", nodes=2) as federation:
        federation.node_configs[1]["model"] = PERCEPTRON
        for node in federation.node_configs.values():
            node |= {"allow-methods": OWN["strategy"], "allow-code": "examples"}
        federation.start_all()
        packed = {"own-settings": "nearest.sharpness = 3", "output-dir": str(tmp_path / "run")}
        process = federation.start_run({**settings, **packed})
        there = federation.finished_run(process, tmp_path / "run", 400)
    configuration = read_config(
        {**settings, "nearest.sharpness": 3.0, "output-dir": str(tmp_path / "here")}
    )
    grid = InProcessGrid(client_app, 2, configuration.flat())
    here = serve(grid, configuration)
    assert there.config["nearest.sharpness"] == 3.0
    assert list(there.clients.sort_values(["round", "partition_id"])["model"])[:2] == [
        "mlp",
        PERCEPTRON,
    ]
    np.testing.assert_allclose(there.rounds["loss_mean"], here.rounds["loss_mean"], rtol=1e-5)
    np.testing.assert_allclose(
        there.matrices["coefficients"], here.matrices["coefficients"], rtol=1e-5
    )
