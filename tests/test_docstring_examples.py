"""Every public function has an example in its docstring, which runs."""

import doctest
import inspect

import numpy as np
import pytest
import sklearn.ensemble
import torch

import fedkd_flwr

FUNCTIONS = [name for name in dir(fedkd_flwr) if inspect.isfunction(getattr(fedkd_flwr, name))]
EXAMPLES = [getattr(fedkd_flwr, name) for name in FUNCTIONS]
EXAMPLES += [fedkd_flwr.Run.model, fedkd_flwr.Run.predict]
NAMES = {"fedkd_flwr": fedkd_flwr, "np": np, "sklearn": sklearn, "torch": torch}
SWEEP = """
[base]
models = "mlp"
num-clients = 3
num-server-rounds = 1
[grid]
strategy = ["local", "kt-pfl"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a sweep, a run of `local`, and one of KT-pFL that has saved its models."""
    runs = tmp_path_factory.mktemp("examples") / "runs"
    small = {"models": "mlp", "num-clients": 3, "num-server-rounds": 2}
    fedkd_flwr.run(small, output_dir=runs / "alone", strategy="local")
    models = runs / "first" / "models"
    fedkd_flwr.run(small, output_dir=runs / "first", strategy="kt-pfl", models_dir=models)
    (runs.parent / "two.toml").write_text(SWEEP)
    return runs.parent


def test_completion_lists_the_public_names_and_nothing_else():
    assert {"run", "sweep", "compare", "settings", "plots"} <= set(dir(fedkd_flwr))
    assert not {"Any", "os", "sys", "Path"} & set(dir(fedkd_flwr))
    assert all(getattr(fedkd_flwr, name) is not None for name in dir(fedkd_flwr))


@pytest.mark.parametrize("function", EXAMPLES, ids=lambda function: function.__qualname__)
def test_the_example_of_a_public_function_runs(function, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, globs=dict(NAMES))
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
