"""A real federation over TLS with SuperNode authentication: the numbers of one process."""

import federation as fed
import numpy as np
import pytest
from federation import GuardedFederation
from helpers import write_image_folder, write_parquet

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.export.approval import exported_models
from fedkd_flwr.grids.in_process import InProcessGrid
from fedkd_flwr.server_app import serve

pytestmark = pytest.mark.slow

MODELS = ("mlp", "lenet", "mlp")
SAME = ["accuracy_mean", "accuracy_std", "loss_mean", "numbers_up", "numbers_down"]
STRATEGIES = ("kt-pfl", "perfed-ckt", "fml", "fedproto")
"""Two of the papers, then one that exchanges parameters and one that exchanges prototypes."""

INTRUDERS = {
    "no key": {},
    "unregistered key": {"key": "stranger"},
    "wrong CA": {"key": "node-0", "root": "other/ca.crt"},
    "plain text": {"insecure": True},
}

POLICY = {"allow-methods": "soft-predictions,fml,fedproto", "min-class-count": 3}
"""What the nodes allow beyond the defaults. A class of these silos has about six samples."""


def config_for(strategy):
    # Every exchange costs each node a process: evaluate once.
    return {**fed.SMALL, "strategy": strategy, "num-clients": 3, "evaluate-every": 2}


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    """Three nodes with data of their own: image folders and Parquet files."""
    with GuardedFederation(tmp_path_factory.mktemp("silos"), nodes=3) as federation:
        federation.approve()
        for n, model in enumerate(MODELS):
            folder = federation.folder / f"silo-{n}"
            images, labels = fed.images_of(fed.SMALL, n)
            if n % 2:
                data = write_image_folder(folder / "images", images, labels)
            else:
                data = write_parquet(folder / "own.parquet", images, labels)
            federation.node_configs[n] |= {
                "model": model,
                "data-path": str(data),
                "state-dir": str(folder / "state"),
                "models-dir": str(folder / "models"),
                **POLICY,
            }
        federation.start_all()
        yield federation


@pytest.fixture(scope="module")
def processes(silos):
    """A run of each strategy. They overlap, and start one after the other."""
    started = {}
    for strategy in STRATEGIES:
        started[strategy] = silos.start_run(
            {
                **config_for(strategy),
                "output-dir": str(silos.folder / strategy),
                # Nodes keep their models where their own config says.
                "models-dir": str(silos.folder / "of-the-server"),
            }
        )
        # Flower installs the app with the first run, and no two may do so at once. Later, a
        # ServerApp that starts too slowly is started again: several at once may never be done.
        silos.wait_for_text(started[strategy], "Run directory:", seconds=300)
    return started


@pytest.fixture(scope="module")
def intruder_logs(silos, processes):
    """What intruders said who knocked while the last run was going on."""
    fed.make_keys(silos.keys / "other", [])
    fed.make_keys(silos.keys, ["stranger"])
    intruders = {
        name: silos.start(
            "intruder",
            [*silos.node_command({"partition-id": 0}, **options), "--max-retries", "1"],
        )
        for name, options in INTRUDERS.items()
    }
    assert processes[STRATEGIES[-1]].poll() is None
    for intruder in intruders.values():
        intruder.wait(timeout=fed.patience(300))
    return {name: intruder.log_path.read_text() for name, intruder in intruders.items()}


@pytest.fixture(scope="module", params=STRATEGIES)
def finished(request, silos, processes, intruder_logs):
    """The run of one strategy over the network."""
    return silos.finished_run(processes[request.param], silos.folder / request.param, 600)


def in_process(silos, strategy, path):
    """Run the same on the same data in this process."""
    configuration = read_config({**config_for(strategy), "output-dir": str(path)})
    nodes = {
        n: {key: node[key] for key in ("model", "data-path", *POLICY)}
        for n, node in silos.node_configs.items()
    }
    return serve(InProcessGrid(client_app, 3, configuration.flat(), nodes), configuration)


def test_results_agree_with_one_process(finished, silos, tmp_path):
    here = in_process(silos, finished.config["strategy"], tmp_path / "run")
    assert list(finished.rounds["replies"]) == [3, 3]
    for column in SAME:
        there = finished.rounds[column].dropna().to_numpy(dtype=float)
        np.testing.assert_allclose(there, here.rounds[column].dropna(), rtol=1e-5)
    by_client = [
        run.clients.dropna(subset="loss").set_index("partition_id") for run in (finished, here)
    ]
    np.testing.assert_allclose(
        by_client[0]["loss"], by_client[1]["loss"].loc[by_client[0].index], rtol=1e-5
    )
    assert list(by_client[0].sort_index()["model"]) == list(MODELS)
    assert finished.matrices.keys() == here.matrices.keys()
    for name, matrix in here.matrices.items():
        np.testing.assert_allclose(finished.matrices[name], matrix, rtol=1e-5, atol=1e-7)


def test_each_node_holds_its_personalized_models(silos, processes):
    runs = {
        strategy: silos.finished_run(processes[strategy], silos.folder / strategy, 600)
        for strategy in STRATEGIES
    }
    assert not (silos.folder / "of-the-server").exists()
    for n in silos.node_configs:
        folder = silos.folder / f"silo-{n}"
        found = list(exported_models(folder / "models"))
        assert {model.card["strategy"] for model in found} == set(STRATEGIES)
        for model in found:
            names = (model.card["run-id"], "round-000002", f"{n}.safetensors")
            assert model.path.relative_to(folder / "models").parts == names
            rows = runs[model.card["strategy"]].clients.dropna(subset="loss")
            correct = rows.set_index("partition_id").loc[n, "correct"]
            assert model.card["metrics"]["correct"] == correct
            parameters = fedkd_flwr.load_model(model.path).parameters()
            assert sum(p.numel() for p in parameters) > 0
        assert list((folder / "state").rglob("round-*.safetensors"))


@pytest.mark.parametrize("name", INTRUDERS)
def test_unauthenticated_nodes_are_refused(name, finished, intruder_logs):
    assert "SuperNode ID" not in intruder_logs[name]
    assert "Failed to initialize the connection" in intruder_logs[name]
    assert set(finished.clients["partition_id"]) == {0, 1, 2}
