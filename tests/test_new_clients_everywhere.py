"""New clients in other processes: with Ray, and in a federation over TLS."""

import federation as fed
import numpy as np
import pytest
from federation import Federation
from test_engines import in_both_engines

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.server_app import serve
from strategies.core.new_clients import NEW_CLIENTS

pytestmark = pytest.mark.slow


def assert_same_new_clients(there, here):
    mine, expected = there.table(NEW_CLIENTS), here.table(NEW_CLIENTS)
    assert len(mine) and mine["failure"].isna().all()
    assert list(mine["partition_id"]) == list(expected["partition_id"])
    np.testing.assert_allclose(mine["loss"], expected["loss"], rtol=1e-5)


def test_ray_gives_the_same_new_clients_as_one_process(small, tmp_path):
    settings = {**small, "strategy": "kt-pfl", "models": "mlp", "new-clients": 0.5}
    simulated, here, _ = in_both_engines(settings, tmp_path)
    assert_same_new_clients(simulated, here)


def test_a_federation_gives_the_same_new_clients_as_one_process(tmp_path):
    """PersFL sends the stored global models to its new clients."""
    persfl = {"strategy": "persfl", "models": "mlp", "persfl.imitation": "0.5"}
    settings = {**fed.SMALL, **persfl, "client-split": "60/20/20", "persfl.temperatures": "2"}
    settings |= {"num-clients": 2, "new-clients": 0.5, "persfl.distillation-epochs": 1}
    with Federation(tmp_path / "federation", nodes=2) as federation:
        for node in federation.node_configs.values():
            node |= {"allow-methods": "persfl", "min-class-count": 3}
        federation.start_all()
        process = federation.start_run({**settings, "output-dir": str(tmp_path / "run")})
        there = federation.finished_run(process, tmp_path / "run", 400)
    configuration = read_config({**settings, "output-dir": str(tmp_path / "here")})
    here = serve(InProcessGrid(client_app, 2, configuration.flat()), configuration)
    assert_same_new_clients(there, here)
