"""The examples in `examples` and in docstrings do what they say."""

import doctest
import inspect
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import sklearn.ensemble
import torch
from helpers import Witness, breaking, client_of, raising, run_with

import fedkd_flwr
from examples import (
    hospitals,
    own_data,
    own_fedrep,
    own_method,
    own_photos,
    own_series,
    own_table,
    three_silos,
)
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import flatten
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.engines.doctor import check_node
from fedkd_flwr.models.build import checked_custom_model
from fedkd_flwr.models.layers import head_of
from fedkd_flwr.training.losses import cross_entropy
from strategies.core.flower import parse_config_args

KNOWN_GROUPS = "examples.known_groups:fedavg_in_groups"
ENSEMBLE_ALONE = "examples.ensemble_alone:ensemble_alone"
SECOND_PRIVATE_MODEL = "examples.second_private_model:second_private_model"


def gradients(loss, model, images, labels):
    model.zero_grad()
    loss(model, images, labels).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_fedrep_trains_the_head_and_then_the_body():
    model = checked_custom_model(own_data.Perceptron((13,), 3), "Perceptron", (13,), 3)
    images, labels = torch.randn(6, 13), torch.tensor([0, 1, 2, 0, 1, 2])
    whole = gradients(cross_entropy, model, images, labels)
    of_head = gradients(own_fedrep.head_loss, model, images, labels)
    of_body = gradients(own_fedrep.body_loss, model, images, labels)
    in_head = {
        name for name, p in model.named_parameters() if p in set(head_of(model).parameters())
    }
    assert 0 < len(in_head) < len(whole)
    for name, expected in whole.items():
        trained, frozen = (of_head, of_body) if name in in_head else (of_body, of_head)
        torch.testing.assert_close(trained[name], expected)
        assert frozen[name] is None


def test_the_recurrent_network_learns_the_series(own, tmp_path):
    samples, labels = own_series.waves()
    assert samples.shape == (1200, 1, own_series.STEPS)
    assert np.bincount(labels).tolist() == [400, 400, 400]
    changes = {"dataset": "examples.own_series:waves", "models": "examples.own_series:Recurrent"}
    changes |= {"strategy": "local", "optimizer": "adam", "momentum": 0.0, "learning-rate": 0.01}
    run = fedkd_flwr.run({**own, **changes, "local-epochs": 3}, output_dir=tmp_path / "run")
    assert run.summary["last_round"]["accuracy_mean"] > 0.5


def test_the_table_has_three_hospitals(tmp_path):
    own_table.write_tumors(str(tmp_path / "tumors.csv"))
    settings = {"dataset": f"folder:{tmp_path / 'tumors.csv'}", "client-column": "hospital"}
    settings |= {"models": "mlp", "strategy": "fedavg", "device": "cpu"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert run.config["num-clients"] == 3
    # 63% have the more frequent class.
    assert run.rounds["accuracy_mean"].iloc[-1] > 0.92


def test_the_photos_are_those_of_three_sites(tmp_path):
    own_photos.write_photos(str(tmp_path / "photos"))
    found = load_images(f"clients:{tmp_path / 'photos'}")
    assert (found.images.shape, found.classes) == ((1797, 1, 28, 28), 10)
    assert np.bincount(found.owners.clients).tolist() == [599] * 3
    assert found.owners.names == ("east", "north", "south")


def test_the_comparison_of_the_example_can_be_repeated(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        comparison = own_method.compare_with_kt_pfl(**{**small, "num-server-rounds": 1})
        assert comparison.groups.keys() == {"local", "kt-pfl", "nearest"}
    assert len(list((tmp_path / "runs").iterdir())) == 6


def test_clients_of_known_groups_share_a_model(small, tmp_path):
    witness = Witness()
    groups = {"strategy": KNOWN_GROUPS, "fedavg-in-groups.clusters": 2}
    changes = {"models": "mlp", "num-clients": 5, "num-server-rounds": 2, **groups}
    run_with(witness, small, tmp_path / "run", **changes)
    sizes = np.array([len(client_of(small | changes, n).data.train_labels) for n in range(5)])
    for members in ([0, 1, 2], [3, 4]):
        sent = [witness.up[1, "train", n]["weights"] for n in members]
        mean = np.average(sent, axis=0, weights=sizes[members])
        for n in members:
            np.testing.assert_allclose(witness.down[2, "train", n]["weights"], mean, atol=1e-6)


@pytest.mark.parametrize(("strategy", "is_alone"), [(ENSEMBLE_ALONE, True), ("fedapen", False)])
def test_the_control_of_fedapen_learns_nothing_from_others(strategy, is_alone, small, tmp_path):
    last_client_fails = breaking(raising("as asked"), 3)
    changes = {"strategy": strategy, "num-server-rounds": 3}
    whole, _ = run_with(client_app, small, tmp_path / "whole", **changes)
    without, _ = run_with(last_client_fails, small, tmp_path / "without", **changes)
    others = "round == 3 and partition_id < 3"
    losses = [list(run.clients.query(others)["loss"]) for run in (whole, without)]
    assert (losses[0] == losses[1]) is is_alone


def test_the_control_of_safeguards_blends_two_models_of_local(small, tmp_path):
    """Its private model is that of `local`; the other one is too, in another run of batches."""
    changes = {"models": "mlp", "client-split": "40/30/30", "safeguard": "blend"}
    settings = {**small, **changes, "num-server-rounds": 2}
    alone = fedkd_flwr.run({**settings, "strategy": "local"}, output_dir=tmp_path / "local")
    run = fedkd_flwr.run(
        {**settings, "strategy": SECOND_PRIVATE_MODEL}, output_dir=tmp_path / "second"
    )
    assert list(run.clients["private_accuracy"]) == list(alone.clients["accuracy"])
    assert list(run.clients["train_loss"]) != list(alone.clients["train_loss"])
    assert run.summary["numbers_up"] == run.summary["numbers_down"] == 0


def test_three_silos_with_different_kinds_of_models_learn_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples, labels = three_silos.tumors()
    assert samples.shape == (569, 30)
    assert sorted(set(labels)) == [0, 1]
    accuracies = three_silos.accuracies("kt-pfl", num_server_rounds=2)
    kinds = [model.rpartition(":")[2] for model in accuracies]
    assert kinds == ["RandomForestClassifier", "HistGradientBoostingClassifier", "Perceptron"]
    assert min(accuracies.values()) > 0.7


def test_five_hospitals_can_take_part_as_the_guide_to_deployment_says(tmp_path):
    hospitals.main(tmp_path)
    images = {path: path.read_bytes() for path in tmp_path.rglob("*.png")}
    assert len(images) == len(set(images.values())) == sum(map(sum, hospitals.HOSPITALS)) + 200
    guide = Path(__file__).parent.parent / "docs/how-to/deploy-install.md"
    page = guide.read_text().replace("/tmp/hospitals", str(tmp_path))
    settings = flatten(tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]))
    (own,) = re.findall(r"^NODE_CONFIG='(model=.*)' \\$", page, re.MULTILINE)
    hashes = set()
    for n, counts in enumerate(hospitals.HOSPITALS):
        node = f'partition-id={n} state-dir="{tmp_path}/state" {own.replace("%n", str(n))}'
        findings = check_node(settings, parse_config_args([node]))
        assert [finding.text for finding in findings if not finding.ok] == []
        (data,) = (finding.text for finding in findings if finding.check == "data")
        parts = re.search(r"(\d+) samples to train, (\d+) to validate, (\d+) to test", data)
        assert sum(map(int, parts.groups())) == sum(counts)
        hashes |= {re.search(r"classes-hash \S+", data)[0]}
    assert len(hashes) == 1


# ---- Docstrings ---------------------------------------------------------------------------


FUNCTIONS = [name for name in dir(fedkd_flwr) if inspect.isfunction(getattr(fedkd_flwr, name))]
EXAMPLES = [getattr(fedkd_flwr, name) for name in FUNCTIONS]
EXAMPLES += [fedkd_flwr.Run.model, fedkd_flwr.Run.predict, fedkd_flwr.Run.soft_predictions]
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
