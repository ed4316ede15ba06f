"""A federation of two nodes over TLS: who takes part, new clients, and custom code.

Runs follow one another on the same nodes, which allow the methods and the code of all of them.
"""

import re

import federation as fed
import numpy as np
import pytest
from federation import FRESH_PROCESSES, GuardedFederation, patience
from test_engines import assert_same_new_clients

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.server_app import serve

pytestmark = pytest.mark.slow

NEAREST = "examples.own_method:nearest"
PERCEPTRON = "examples.own_data:Perceptron"
FOREST = "sklearn.ensemble:RandomForestClassifier"
POLICY = {
    "allow-methods": f"soft-predictions,persfl,{NEAREST}",
    "allow-code": "examples,sklearn",
    "min-class-count": 3,
}


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    with GuardedFederation(tmp_path_factory.mktemp("silos"), nodes=2) as federation:
        federation.approve()
        for node in federation.node_configs.values():
            node |= {"num-partitions": 2, **POLICY}
        federation.start_all()
        yield federation


def in_process(settings, path):
    """Run the same in this process."""
    configuration = read_config({**settings, "output-dir": str(path)})
    return serve(InProcessGrid(client_app, 2, configuration.flat()), configuration)


def test_two_silos_start_by_number_or_as_connected(silos, tmp_path):
    """What a federation of two nodes does with eight clients, and with the default."""
    settings = {name: value for name, value in fed.SMALL.items() if name != "num-clients"}
    settings |= {"output-dir": str(tmp_path / "run"), "num-server-rounds": 1}
    eight = silos.start_run({**settings, "num-clients": 8, "connect-timeout": 5.0})
    text = " s for 8 clients: 2 are connected (num-clients=0 takes"
    silos.wait_for_text(eight, text, patience(120))
    # On a busy machine the two nodes connect when a second has passed.
    assert re.search(r"Waiting up to [1-5] s for 8 clients: 2 are", eight.log_path.read_text())
    text = "The run stopped: The run needs 8 clients and 2 are connected"
    silos.wait_for_text(eight, text, patience(60))
    assert eight.wait(timeout=patience(60)) is not None
    two = silos.start_run(settings)
    silos.wait_for_text(two, "Finished. Run directory", patience(300))
    two.wait(timeout=patience(60))
    assert fedkd_flwr.load_run(tmp_path / "run").config["num-clients"] == 2


def test_new_clients_have_the_results_of_one_process(silos, tmp_path):
    """PersFL sends the stored global models to its new clients."""
    persfl = {"strategy": "persfl", "persfl.imitation": "0.5", "persfl.temperatures": "2"}
    settings = {**fed.SMALL, **persfl, "num-clients": 2, "new-clients": 0.5}
    settings["persfl.distillation-epochs"] = 1
    process = silos.start_run({**settings, "output-dir": str(tmp_path / "run")})
    there = silos.finished_run(process, tmp_path / "run", 400)
    assert_same_new_clients(there, in_process(settings, tmp_path / "here"))


def test_custom_code_gives_the_numbers_of_one_process(silos, tmp_path):
    # A round of a table takes no time; held out are 40 of the 178 wines.
    table = {"dataset": "examples.own_data:wines", "max-samples": 0, "held-out-size": 40}
    own = {"strategy": NEAREST, "models": f"mlp,{PERCEPTRON}", "num-clients": 2}
    settings = {**fed.SMALL, **table, **own}
    packed = {"own-settings": "nearest.sharpness = 3", "output-dir": str(tmp_path / "run")}
    process = silos.start_run({**settings, **packed})
    there = silos.finished_run(process, tmp_path / "run", 400)
    here = in_process({**settings, "nearest.sharpness": 3.0}, tmp_path / "here")
    assert there.config["nearest.sharpness"] == 3.0
    models = there.clients.sort_values(["round", "partition_id"])["model"]
    assert list(models)[:2] == ["mlp", PERCEPTRON]
    np.testing.assert_allclose(there.rounds["loss_mean"], here.rounds["loss_mean"], rtol=1e-5)
    np.testing.assert_allclose(
        there.matrices["coefficients"], here.matrices["coefficients"], rtol=1e-5
    )


def test_a_forest_on_one_node_gives_the_numbers_of_one_process(silos, tmp_path):
    """Its node starts a new Python for each message; the other one forks, as in all other runs."""
    silos.app_options[1] = FRESH_PROCESSES
    silos.start_app(1)
    options = "RandomForestClassifier = {n_estimators = 5}"
    own = {"models": f"mlp,{FOREST}", "num-clients": 2, "estimator-options": options}
    settings = {**fed.SMALL, **own}
    process = silos.start_run({**settings, "output-dir": str(tmp_path / "run")})
    there = silos.finished_run(process, tmp_path / "run", 400)
    here = in_process(settings, tmp_path / "here")
    models = there.clients.sort_values(["round", "partition_id"])["model"]
    assert list(models) == ["mlp", FOREST] * 2
    np.testing.assert_allclose(there.rounds["loss_mean"], here.rounds["loss_mean"], rtol=1e-5)
    np.testing.assert_allclose(there.rounds["accuracy_mean"], here.rounds["accuracy_mean"])
