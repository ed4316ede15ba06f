"""What is loaded when: each check is a fresh process that looks at its own modules."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "torchvision",
    "sklearn",
    "scipy",
    "pandas",
    "datasets",
    "pyarrow",
    "flwr_datasets",
    "matplotlib",
    "networkx",
    "seaborn",
)


def loaded_by(code):
    """Return the names of the modules that a fresh process has loaded after running code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_the_run_config_is_known_without_anything_heavy():
    loaded = loaded_by("import fedkd_flwr.config")
    assert loaded & {*HEAVY} == set()
    assert [name for name in loaded if name.startswith("fedkd_flwr.clients")] == []


def test_knowing_the_methods_loads_none():
    loaded = loaded_by("from fedkd_flwr.methods import METHODS; assert METHODS")
    assert [name for name in loaded if name.startswith("strategies")] == []
    assert loaded & {*HEAVY} == set()


def test_help_loads_neither_flower_nor_rich_nor_anything_heavy():
    loaded = loaded_by(COMMAND.format("--help"))
    assert loaded & {*HEAVY, "flwr", "rich", "pydantic", "numpy"} == set()


def test_the_list_of_names_needs_nothing_heavy():
    assert loaded_by(COMMAND.format("list")) & {*HEAVY} == set()


def test_runs_are_written_and_opened_without_frames():
    loaded = loaded_by("import fedkd_flwr.runs, fedkd_flwr.server_app")
    assert loaded & {"pandas", "matplotlib", "seaborn"} == set()


COMMAND = """
import sys
from fedkd_flwr.cli import app
sys.argv = ["fedkd", "{}"]
app(standalone_mode=False)
"""

LENET_CLIENT = """
from flwr.app import Context, RecordDict
from fedkd_flwr.client_app import build_client
config = {"models": "lenet", "public-dataset": "held-out", "device": "cpu"}
client = build_client(Context(0, 0, {"partition-id": 0}, RecordDict(), config))
client.fit([], {"names": [], "server-round": 1, "phase": "train"})
client.evaluate([], {"names": [], "server-round": 1})
"""


@pytest.mark.parametrize(
    "module",
    [
        "seaborn",
        "matplotlib",
        "networkx",
        "sklearn",
        "scipy.stats",
        "pandas",
        "datasets",
        "flwr_datasets",
        "torchvision",
    ],
)
def test_a_lenet_client_on_digits_does_without(module, lenet_modules):
    assert module not in lenet_modules


@pytest.fixture(scope="module")
def lenet_modules():
    return loaded_by(LENET_CLIENT)
