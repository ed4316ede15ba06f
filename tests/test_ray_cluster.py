"""Simulations and sweeps on an existing Ray cluster: two nodes on loopback."""

import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
import tomli_w
from federation import free_port
from processes import FLWR, MARK, app_folder, output_of, started_by, stop_all
from test_engines import assert_same_new_clients, assert_same_numbers

import fedkd_flwr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="two addresses on loopback"),
]

PROGRAMS = Path(sys.executable).parent
NODES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def cluster():
    """Start two nodes of one processor each; yield their environment and stop them."""
    # Not pytest's folder, whose name is too long for Ray's sockets. Ray's own default would let
    # any other program on this machine find the cluster.
    folder = tempfile.mkdtemp(prefix="ray")
    address = f"{NODES[0]}:{free_port()}"
    env = {**os.environ, MARK: folder, "RAY_ADDRESS": address, "FLWR_HOME": f"{folder}/flwr"}
    for name in ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT"):
        env[name] = str(free_port())
    env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    env["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # tests are started by `uv run`
    env["PATH"] = f"{PROGRAMS}{os.pathsep}{env['PATH']}"
    head = ["--head", "--port", address.split(":")[1], "--temp-dir", folder]
    head += ["--include-dashboard", "false"]
    common = ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats"]
    try:
        for node, options in zip(NODES, (head, ["--address", address]), strict=True):
            command = [PROGRAMS / "ray", "start", *options, "--node-ip-address", node, *common]
            output_of(*command, env=env, cwd=folder)
        yield env
    finally:
        stop_all(folder)
        left = started_by(folder)
        shutil.rmtree(folder, ignore_errors=True)
        assert left == []


@pytest.fixture
def nodes_of(cluster, monkeypatch):
    """Say for each program that used the cluster on which nodes it had calls of a name served."""
    import ray

    for name in ("RAY_ADDRESS", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"):
        monkeypatch.setenv(name, cluster[name])

    def look(call):
        nodes = defaultdict(set)
        ray.init(logging_level="ERROR")
        try:
            for event in ray.timeline():
                if event["cat"] == f"task::{call}":
                    # A task's id ends with that of the program, Ray's job.
                    nodes[event["args"]["task_id"][-8:]].add(event["pid"])
        finally:
            ray.shutdown()
        return [len(found) for found in nodes.values()]

    return look


def done(cluster, *command, cwd):
    return output_of(*command, env=cluster, cwd=cwd)


def test_a_simulation_has_its_clients_on_both_nodes(small, cluster, nodes_of, tmp_path):
    """A custom method with new clients from `fedkd run`, SCAFFOLD's parameters from `flwr run`."""
    custom = {
        **small,
        "strategy": "examples.own_method:nearest",
        "models": "mlp,examples.own_model:TinyNet",
        "nearest.sharpness": 3.0,
        "new-clients": 0.25,
    }
    scaffold = {**small, "strategy": "scaffold", "models": "mlp", "momentum": 0.0}
    scaffold["fraction-train"] = 0.75
    simulated, flower = tmp_path / "simulated", tmp_path / "flower"
    (tmp_path / "preset.toml").write_text(tomli_w.dumps(custom))
    (tmp_path / "run.toml").write_text(tomli_w.dumps({**scaffold, "output-dir": str(flower)}))
    preset = ("preset.toml", "--output-dir", simulated)
    done(cluster, PROGRAMS / "fedkd", "run", *preset, "--engine", "simulation", cwd=tmp_path)
    size = "num-supernodes=4 client-resources-num-cpus=1"
    config = ("--run-config", tmp_path / "run.toml", "--federation-config", size)
    done(cluster, *FLWR, "run", app_folder(), "--stream", *config, cwd=tmp_path)

    assert nodes_of("ClientAppActor.run") == [2, 2]
    of_custom = fedkd_flwr.load_run(simulated)
    here = fedkd_flwr.run(custom, output_dir=tmp_path / "custom")
    assert_same_numbers(of_custom, here)
    assert_same_new_clients(of_custom, here)
    assert of_custom.config["nearest.sharpness"] == 3.0
    here = fedkd_flwr.run(scaffold, output_dir=tmp_path / "scaffold")
    assert_same_numbers(fedkd_flwr.load_run(flower), here)


def test_a_sweep_has_its_runs_on_both_nodes(small, cluster, nodes_of, tmp_path):
    settings = {**small, "models": "mlp", "num-server-rounds": 30}
    grid = {"seed": [0, 1], "strategy": ["local", "kt-pfl"]}
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps({"base": settings, "grid": grid}))
    # The cluster's processes have another working directory than the command.
    options = ("--jobs", "2", "--output-dir", "runs", "-c", "models-dir=models")
    said = done(cluster, PROGRAMS / "fedkd", "sweep", "sweep.toml", *options, cwd=tmp_path)
    assert len(list(tmp_path.glob("models/*/0.safetensors"))) == 4
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 4
    assert said.count(" finished accuracy ") == 4
    assert nodes_of("attempt") == [2]
    assert started_by(cluster[MARK])  # a sweep stops its own runs, not the cluster
