"""Python objects instead of names: models, methods, data, in one process."""

import functools
import json
import re
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedkd_flwr
from examples.own_data import wines
from examples.own_model import TinyNet
from fedkd_flwr.clients.fedprox import FedProxClient
from fedkd_flwr.config import ConfigError, read_config, require_importable
from fedkd_flwr.custom_objects.importing import HELD, CustomObjectError, find_custom
from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.sources import load_images
from fedkd_flwr.methods import REGISTERED
from fedkd_flwr.runs import RunDirectoryError
from strategies.fedprox import FedProx


class MyProx(FedProx):
    """FedProx under another name."""


def table(seed=0, rows=120):
    samples = np.random.default_rng(seed).normal(size=(rows, 6))
    return samples, (samples[:, 0] > 0).astype(int)


def perceptron(width):
    def build(shape, classes):
        return nn.Sequential(
            nn.Flatten(), nn.LazyLinear(width), nn.ReLU(), nn.Linear(width, classes)
        )

    return build


def test_a_class_or_function_of_a_module_is_named_by_its_module():
    named = fedkd_flwr.name_objects({"models": TinyNet, "dataset": wines, "seed": 3})
    assert named == {
        "models": "examples.own_model:TinyNet",
        "dataset": "examples.own_data:wines",
        "seed": 3,
    }


def test_a_list_may_mix_names_and_objects():
    small, large = perceptron(4), perceptron(8)
    named = fedkd_flwr.name_objects({"models": ["mlp", small, TinyNet, large, small]})
    names = named["models"]
    assert (names[0], names[2]) == ("mlp", "examples.own_model:TinyNet")
    assert names[4] == names[1] != names[3]
    assert all(re.fullmatch("object:build_[0-9a-f]{12}", names[n]) for n in (1, 3))
    assert (find_custom(names[1]), find_custom(names[3])) == (small, large)
    assert read_config(named).run.models.models == names


def name_of(model):
    return fedkd_flwr.name_objects({"models": model})["models"]


def test_a_callable_is_named_by_what_it_computes():
    def linear(factor):
        return lambda shape, classes: nn.Linear(factor * shape[0], classes)

    local_net = type("Net", (nn.Linear,), {"forward": lambda self, x: x + 1})
    other_net = type("Net", (nn.Linear,), {"forward": lambda self, x: x + 2})
    different = [
        lambda shape, classes: nn.Linear(4, classes),
        lambda shape, classes: nn.Linear(8, classes),
        lambda shape, classes: nn.LazyLinear(classes),
        lambda shape, classes, width=4: nn.Linear(width, classes),
        lambda shape, classes, width=8: nn.Linear(width, classes),
        linear(1),
        linear(2),
        linear(np.ones(3)),
        linear(np.zeros(3)),
        functools.partial(perceptron, 4),
        functools.partial(perceptron, 8),
        local_net,
        other_net,
    ]
    assert len({name_of(model) for model in different}) == len(different)
    assert name_of(linear(2)) == name_of(linear(2))
    assert name_of(functools.partial(perceptron, 4)) == name_of(functools.partial(perceptron, 4))


class Builder:
    """A callable object that reads an attribute."""

    def __init__(self, held):
        self.held = held

    def __call__(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"mode": "on"}, {"mode": "off"}),
        ([1, 2], [1, 3]),
        (None, 0),
        (torch.float32, torch.float64),
        (Path("a"), Path("b")),
        (SimpleNamespace(mode="on"), SimpleNamespace(mode="off")),
        (deque([1]), deque([2])),
        (nn.ReLU, nn.Tanh),
        (functools.cache(lambda x: x), functools.cache(lambda x: -x)),
    ],
)
def test_all_that_an_object_holds_decides_on_its_name(one, other):
    def reading(held):
        return lambda shape, classes: nn.Linear(len(str(held)), classes)

    def with_member(held):
        return type("Net", (nn.Linear,), {"held": held})

    for built_with in (Builder, lambda held: Builder(Builder(held)), reading, with_member):
        assert name_of(built_with(one)) != name_of(built_with(other))
        assert name_of(built_with(one)) == name_of(built_with(one))


def test_an_object_of_a_script_is_named_by_main(monkeypatch):
    import __main__

    class Net(nn.Linear):
        """As a script or a notebook's cell defines it."""

    Net.__module__, Net.__qualname__ = "__main__", "Net"
    monkeypatch.setattr(__main__, "Net", Net, raising=False)
    assert fedkd_flwr.name_objects({"models": Net}) == {"models": "__main__:Net"}


def test_a_run_takes_a_model_a_method_and_arrays(own, tmp_path):
    changes = {"num-server-rounds": 1, "torch-threads": 1, "partition": "iid"}
    run = fedkd_flwr.run(
        {**own, **changes},
        models=["mlp", perceptron(5)],
        strategy="kt-pfl",
        dataset=(*table(), np.arange(len(table()[1])) % 9),
        output_dir=tmp_path / "run",
    )
    assert list(run.rounds["failures"]) == [0]
    config = json.loads((run.path / "config.json").read_text())["config"]
    assert re.fullmatch("mlp,object:build_[0-9a-f]{12}", config["models"])
    assert config["dataset"].startswith("object:data_")
    assert config["partition"] == "iid"


def test_messages_about_a_small_data_set_say_what_to_set(tmp_path):
    samples = np.random.default_rng(0).normal(size=(100, 6))
    settings = {"dataset": (samples, np.arange(100) % 3), "models": "mlp", "num_server_rounds": 1}
    remedies = (
        ("held-out-size to less than 100, such as 20, and public-size", {"held_out_size": 20}),
        ("classes-per-client to at most 3, or partition to iid", {"classes_per_client": 3}),
        ("the most that public-size can be", {"public_size": 20}),
    )
    for sentence, remedy in remedies:
        with pytest.raises(DataError, match=re.escape(sentence)):
            fedkd_flwr.run(**settings, output_dir=tmp_path / "run")
        settings |= remedy
    settings |= {"client_split": "60/0/40", "torch_threads": 1}
    assert len(fedkd_flwr.run(**settings, output_dir=tmp_path / "run").rounds) == 1
    with pytest.raises(DataError, match="too few for the client-split 60/0/40, which needs 2; set"):
        fedkd_flwr.run(**settings, num_clients=60, partition="iid", output_dir=tmp_path / "b")


def test_a_pair_or_a_registered_method_is_a_strategy(own, tmp_path):
    method = fedkd_flwr.register("my-prox", MyProx, FedProxClient)
    assert fedkd_flwr.name_objects({"strategy": method}) == {"strategy": "my-prox"}
    runs = [
        fedkd_flwr.run(own, strategy=strategy, dataset=table(), output_dir=tmp_path / str(n))
        for n, strategy in enumerate([(MyProx, FedProxClient), "fedprox"])
    ]
    assert runs[0].config["strategy"] == "my-prox"
    assert list(runs[0].rounds["loss_mean"]) == list(runs[1].rounds["loss_mean"])
    with pytest.raises(ConfigError, match="another method was registered later under the same"):
        fedkd_flwr.name_objects({"strategy": method})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"strategy": MyProx},
            "strategy is the class MyProx; it should be a name, what fedkd_flwr.register",
        ),
        ({"strategy": (FedProx, FedProxClient, 3)}, "or a pair of a strategy class and a client"),
        ({"strategy": (FedProx, 3)}, "client is 3; it should be a subclass of PersonalClient"),
        ({"models": nn.Linear(3, 2)}, "models: this is a network; pass its class or a function"),
        ({"dataset": [1, 2, 3, 4]}, r"dataset returned a list; it should be \(\) -> \(samples"),
        ({"public-dataset": ([1.0], [0])}, "public-dataset returned samples"),
    ],
)
def test_an_object_that_cannot_be_used_is_refused_in_one_line(settings, sentence):
    with pytest.raises((ConfigError, DataError, CustomObjectError), match=sentence) as refused:
        fedkd_flwr.name_objects(settings)
    assert "\n" not in str(refused.value)


def test_data_are_named_by_their_content():
    names = [
        fedkd_flwr.name_objects({"dataset": data})["dataset"]
        for data in (table(), table(), table(1), lambda: table(1))
    ]
    assert names[0] == names[1] != names[2]
    assert names[3] == names[2].replace("data_", "lambda_")
    samples = torch.zeros(4, 2)
    name = fedkd_flwr.name_objects({"dataset": (samples, [0, 1, 0, 1])})["dataset"]
    samples += 1
    assert load_images(name).images.sum() == 0


def test_other_engines_ask_for_a_name(own, tmp_path):
    for changes, sentence in (
        ({"models": perceptron(3)}, r"models = object:build_\w+ is an object of this process"),
        ({"dataset": table()}, r"dataset = object:data_\w+ is an object of this process"),
        ({"strategy": (MyProx, FedProxClient)}, "my-prox is registered in this process"),
    ):
        with pytest.raises(ConfigError, match=f"{sentence}.*module:object") as refused:
            fedkd_flwr.run(own, engine="simulation", output_dir=tmp_path / "run", **changes)
        assert "\n" not in str(refused.value)
    shared = {"strategy": "fml", "models": "mlp", "fml.shared-model": "__main__:Net"}
    with pytest.raises(ConfigError, match=r"fml\.shared-model = __main__:Net is an object of this"):
        require_importable(read_config(shared), "a deployment has")


def test_a_run_continues_when_the_same_objects_are_passed_again(own, tmp_path):
    given = {"models": perceptron(3), "dataset": table(), "strategy": (MyProx, FedProxClient)}
    folder = tmp_path / "run"
    fedkd_flwr.run(own, output_dir=folder, **given)
    HELD.clear()
    del REGISTERED["my-prox"]
    with pytest.raises(RunDirectoryError, match=r"register\('my-prox', ...\) in this process"):
        fedkd_flwr.resume(folder, num_server_rounds=2)
    strategy = fedkd_flwr.register("my-prox", MyProx, FedProxClient)
    with pytest.raises(RunDirectoryError, match="pass the same objects again") as refused:
        fedkd_flwr.resume(folder, num_server_rounds=2)
    assert "fedkd_flwr.resume(path, dataset=..., models=...)" in str(refused.value)
    with pytest.raises(RunDirectoryError, match=r"\(models = object:build_\w+\): pass the same"):
        fedkd_flwr.resume(folder, num_server_rounds=2, dataset=given["dataset"])
    with pytest.raises(RunDirectoryError, match=r"\(models = object:build_\w+\): pass the same"):
        fedkd_flwr.client_data(fedkd_flwr.load_run(folder), 0)
    again = {**given, "strategy": strategy}
    for changes, key in (({"dataset": table(1)}, "dataset"), ({"models": perceptron(4)}, "models")):
        with pytest.raises(ConfigError, match=f"was started with {key} = object:") as refused:
            fedkd_flwr.resume(folder, num_server_rounds=2, **{**again, **changes})
        assert f"pass the same object again, not {key} = object:" in str(refused.value)
    assert len(fedkd_flwr.resume(folder, num_server_rounds=2, **again).rounds) == 2
