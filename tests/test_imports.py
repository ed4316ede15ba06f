"""What is loaded when: each check is a fresh process that looks at its own modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import write_parquet

PLOTS = {"matplotlib"}
# `torch._dynamo` is PyTorch's compiler, which takes as long to load as the rest of PyTorch.
NEVER_ON_A_CLIENT = {
    "datasets",
    "dp_accounting",
    "pandas",
    "ray",
    "scipy",
    "scipy.stats",
    "sklearn",
    "torch._dynamo",
    "torchvision",
    "torchvision.models",
    *PLOTS,
}
FILES = {"pyarrow", "PIL"}
HEAVY = {"torch", *NEVER_ON_A_CLIENT, *FILES}


def loaded_by(code):
    """Return the names of the modules that a fresh process has loaded after running code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def loaded_by_command(argument):
    return loaded_by(f"from fedkd_flwr.cli import app\napp([{argument!r}], standalone_mode=False)")


STAGES = """
import json, sys
from flwr.app import Context, RecordDict
from fedkd_flwr.client_app import build_client

def show():
    print(json.dumps(sorted(sys.modules)))

for config in json.loads(sys.argv[1]):
    config |= {"models": "lenet", "device": "cpu", "local-epochs": 1}
    node = {"partition-id": 0, "trust-server": True}
    client = build_client(Context(0, 0, node, RecordDict(), config))
    client.get_properties({})
    client.fit([], {"names": [], "server-round": 1, "phase": "train"})
    client.evaluate([], {"names": [], "server-round": 1})
    show()
import fedkd_flwr.runs, fedkd_flwr.server_app
show()
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Return what one process has loaded after each of three stages.

    A LeNet client introduces itself, trains and is evaluated on digits, then one on a Parquet
    file; then runs can be written and opened.
    """
    folder = tmp_path_factory.mktemp("data")
    images = np.random.default_rng(0).integers(0, 256, (100, 28, 28), dtype=np.uint8)
    write_parquet(folder / "ylecun/mnist/train.parquet", images, np.arange(100) % 10, "image")
    parquet = {
        "dataset": "mnist",
        "data-root": str(folder),
        "partition": "iid",
        "num-clients": 2,
        "held-out-size": 20,
        "public-size": 10,
        "optimizer": "adam",
    }
    configs = json.dumps([{"max-samples": 300}, parquet])
    command = [sys.executable, "-c", STAGES, configs]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return [set(json.loads(line)) for line in finished.stdout.splitlines()]


def test_the_run_config_is_known_without_anything_heavy():
    loaded = loaded_by("import fedkd_flwr.config")
    assert loaded & HEAVY == set()
    assert [name for name in loaded if name.startswith("fedkd_flwr.clients")] == []


def test_help_loads_neither_flower_nor_rich_nor_anything_heavy():
    loaded = loaded_by_command("--help")
    assert loaded & {*HEAVY, "flwr", "rich", "pydantic", "numpy"} == set()


def test_the_list_of_names_needs_nothing_heavy():
    assert loaded_by_command("list") & HEAVY == set()


def test_a_lenet_client_on_digits_loads_no_unused_package(stages):
    digits, _, _ = stages
    assert "torch" in digits
    assert digits & (NEVER_ON_A_CLIENT | FILES) == set()


def test_a_lenet_client_on_a_parquet_file_loads_no_unused_package(stages):
    _, parquet, _ = stages
    assert parquet >= FILES
    assert parquet & NEVER_ON_A_CLIENT == set()


def test_a_run_in_one_process_loads_no_server_of_flower(tmp_path):
    """Flower's own grids bring a web server and an SQL library, which take a second to load."""
    settings = {
        "strategy": "local", "models": "mlp", "num-clients": 2, "num-server-rounds": 1,
        "max-samples": 300, "local-epochs": 1, "device": "cpu",
    }  # fmt: skip
    loaded = loaded_by(
        f"import fedkd_flwr\nfedkd_flwr.run({settings!r}, output_dir={str(tmp_path / 'run')!r})"
    )
    assert "fedkd_flwr.engines.in_process" in loaded
    servers = {"flwr.superlink.grid", "fastapi", "uvicorn", "sqlalchemy", "alembic"}
    assert loaded & servers == set()


def openmp_says(code, asked):
    """Return what OpenMP prints in a fresh process with these variables when it is loaded."""
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **asked}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other OpenMP libraries")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_pytorchs_threads_spin_shortly_or_as_asked(asked, expected):
    """OpenMP reads it when it is loaded. Of PyTorch, its OpenMP library is enough."""
    (library,) = (Path(torch.__file__).parent / "lib").glob("libgomp*")
    said = openmp_says(f"import ctypes, fedkd_flwr; ctypes.CDLL({str(library)!r})", asked)
    assert f"GOMP_SPINCOUNT = '{expected}'" in said
