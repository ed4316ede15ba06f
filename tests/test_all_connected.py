"""num-clients = 0: a run has all connected clients, or as many as its data."""

import logging
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from flwr.app import Context, RecordDict
from helpers import client_of, png, write_image_folder

import fedkd_flwr
from fedkd_flwr import server_app
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.client_app import build_client
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.engines.doctor import check_node
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.runs import RunDirectoryError
from fedkd_flwr.server_app import require_simulated, serve, with_connected_clients
from fedkd_flwr.sweeps import read_sweep, run_sweep
from fedkd_flwr.tuning import tune
from strategies.core.replies import TooFewRepliesError


@pytest.fixture
def everybody(small, monkeypatch):
    monkeypatch.setattr(server_app, "SETTLED_SECONDS", 0.2)
    # Enough samples of each class that a node may count them.
    return {**small, "max-samples": 600, "num-clients": 0, "strategy": "kt-pfl"}


class Arriving(InProcessGrid):
    """Another node is connected each time that somebody asks."""

    asked = 0

    def get_node_ids(self):
        self.asked += 1
        return list(super().get_node_ids())[: self.asked]


def test_the_run_has_the_connected_clients(everybody, tmp_path, logged):
    asked = read_config({**everybody, "output-dir": str(tmp_path / "run")})
    grid = Arriving(client_app, 3, asked.flat())
    configuration = with_connected_clients(grid, asked)
    assert "3 clients are connected; the run has 3 clients" in logged(logging.INFO)
    run = serve(grid, configuration)
    assert run.config["num-clients"] == 3
    assert set(run.clients["partition_id"]) == {0, 1, 2}
    assert run.matrices["coefficients"].shape == (2, 3, 3)
    same = fedkd_flwr.run({**everybody, "num-clients": 3}, output_dir=tmp_path / "three")
    assert list(run.rounds["loss_mean"]) == list(same.rounds["loss_mean"])


def test_a_continued_run_keeps_its_clients(everybody, tmp_path):
    settings = {**everybody, "strategy": "local", "num-server-rounds": 1}
    folders = {"output-dir": str(tmp_path / "run"), "state-dir": str(tmp_path / "state")}
    fedkd_flwr.run({**settings, **folders, "num-clients": 3})
    asked = read_config({**settings, **folders, "num-server-rounds": 2, "resume": True})
    configuration = with_connected_clients(InProcessGrid(client_app, 2, asked.flat()), asked)
    assert configuration.run.plan.num_clients == 3
    gone = read_config({**settings, "output-dir": str(tmp_path / "gone"), "resume": True})
    with pytest.raises(RunDirectoryError, match="gone"):
        with_connected_clients(InProcessGrid(client_app, 2, asked.flat()), gone)


class OneMissing(InProcessGrid):
    """Its last node is not connected."""

    def get_node_ids(self):
        return list(super().get_node_ids())[:-1]


def test_shares_of_other_divisions_of_the_data_are_left_out(everybody, tmp_path):
    """Else the run would be said to be of a split that none of its clients has."""
    asked = read_config({**everybody, "output-dir": str(tmp_path / "run")})
    grid = OneMissing(client_app, 4, asked.flat())
    said = r"0 valid clients are fewer .* client 0 has a share of data divided among 4 clients, but"
    with pytest.raises(TooFewRepliesError, match=rf"{said} the run has 3"):
        serve(grid, with_connected_clients(grid, asked))


def test_nodes_with_their_own_data_need_no_partition_count(everybody, tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    write_image_folder(tmp_path / "images", images, np.arange(60) % 10)
    asked = read_config({**everybody, "output-dir": str(tmp_path / "run")})
    configs = {n: {"data-path": str(tmp_path / "images")} for n in range(4)}
    grid = OneMissing(client_app, 4, asked.flat(), configs)
    run = serve(grid, with_connected_clients(grid, asked))
    assert set(run.clients["partition_id"]) == {0, 1, 2}


def test_fewer_than_min_replies_stop_the_run(everybody):
    asked = read_config({**everybody, "min-replies": 3, "connect-timeout": 0.3})
    with pytest.raises(TooFewRepliesError, match=r"2 are after 0.3 s, and min-replies is 3"):
        with_connected_clients(InProcessGrid(client_app, 2, asked.flat()), asked)


def test_combinations_impossible_with_the_connected_number_are_refused(everybody):
    asked = read_config({**everybody, "strategy": "perfed-ckt", "perfed-ckt.clusters": 3})
    grid = InProcessGrid(client_app, 2, asked.flat())
    with pytest.raises(
        ConfigError, match=r"clusters = 3 is more than the 2 clients; set it to at most 2"
    ):
        with_connected_clients(grid, asked)


def test_a_node_needs_num_partitions_when_num_clients_is_zero(everybody):
    node = {"partition-id": 0, "epsilon-budget": math.inf}
    context = Context(1, 1, node, RecordDict(), read_config(everybody).flat())
    with pytest.raises(
        ValueError, match="needs num-partitions, the number of all nodes, in the node's config"
    ):
        build_client(context)
    context.node_config["num-partitions"] = 4
    client = client_of({**everybody, "num-clients": 4})
    assert build_client(context).data.num_train == client.data.num_train
    *_, finding = check_node(everybody, {"partition-id": 0})
    assert "num-partitions" in finding.text
    assert all(found.ok for found in check_node(everybody, dict(context.node_config)))


def test_a_simulation_with_too_few_nodes_fails_without_waiting(everybody):
    asked = read_config({**everybody, "num-clients": 3})
    said = r"num-clients is 3 and the federation has 2 nodes: use .* num-clients=0, or .*nodes=3"
    with pytest.raises(TooFewRepliesError, match=said):
        require_simulated(InProcessGrid(client_app, 2, asked.flat()), 3)
    require_simulated(Arriving(client_app, 3, asked.flat()), 3)


def test_the_log_names_whom_a_federation_waits_for(everybody, logged, tmp_path):
    settings = {**everybody, "num-clients": 3, "connect-timeout": 0.5}
    asked = read_config({**settings, "output-dir": str(tmp_path / "run")})
    with pytest.raises(TooFewRepliesError, match="needs 3 clients and 2 are connected"):
        serve(InProcessGrid(client_app, 2, asked.flat()), asked)
    (said,) = [line for line in logged(logging.INFO) if line.startswith("Waiting")]
    assert "for 3 clients: 2 are connected (num-clients=0 takes all" in said


# ---- Sweeps and searches that leave the number of clients to the data ---------------------


SETTINGS = {
    "strategy": "local", "client-column": "writer", "num-clients": 0, "public-dataset": "none",
    "held-out-size": 0, "num-server-rounds": 2, "local-epochs": 1,
    "models": "mlp", "device": "cpu", "torch-threads": 1,
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.parquet", writers=4)


def write_table(path, writers):
    images = [png(np.full((4, 4), number, dtype=np.uint8)) for number in range(120)]
    columns = {
        "image": images,
        "label": [number // writers % 3 for number in range(120)],
        "writer": [f"w{number % writers}" for number in range(120)],
    }
    pa.parquet.write_table(pa.table(columns), path)
    return f"folder:{path}"


def test_the_sweep_of_a_tuning_finds_its_data_from_any_folder(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = {"dataset": "folder:table.parquet", "data-root": "sets", "client-split": "60/20/20"}
    tuning = tune({**SETTINGS, **own}, [], "tuning", budget=1, seeds=1, fresh_seeds=1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (run,) = read_sweep(tuning.sweep).values()
    assert run.run.data.dataset == table
    assert run.run.data.data_root == str(tmp_path / "sets")
    for _ in range(2):
        assert len(run_sweep(tuning.sweep, "runs")) == 1
