"""Custom methods: registered here or named in a config, with their own settings."""

import json
import logging
import tomllib

import numpy as np
import pytest
from pydantic import Field

import fedkd_flwr
from examples import own_method
from fedkd_flwr.clients.fedprox import FedProxClient
from fedkd_flwr.clients.kt_pfl import KTpFLClient
from fedkd_flwr.clients.parameters import FedAvgClient, ParameterClient
from fedkd_flwr.clients.perfed_ckt import PerFedCKTClient
from fedkd_flwr.config import ConfigError, known_names, read_config
from fedkd_flwr.custom_objects.importing import CustomObjectError
from fedkd_flwr.engines import run_deployment
from fedkd_flwr.methods import METHODS, REGISTERED
from fedkd_flwr.sweeps.grid import read_sweep
from strategies.core.plan import Settings
from strategies.core.replies import TooFewRepliesError
from strategies.fedprox import FedProx
from strategies.kt_pfl import KTpFL, KTpFLSettings
from strategies.parameters import MixtureStrategy, ParameterStrategy
from strategies.perfed_ckt import PerFedCKT

NEAREST = "examples.own_method:nearest"
HERE = "test_custom_methods"
not_a_method = 3


class HalvedSettings(Settings):
    table = "halved"
    mu: float = Field(default=0.5, ge=0)
    rule: str = "mean"


def with_settings(settings):
    record = FedProx.record.derived(settings_type=settings)
    return type("Prox", (FedProx,), {"record": record})


@pytest.fixture
def halved():
    """FedProx with settings of its own, as a cell of a notebook would register it."""
    return fedkd_flwr.register("halved", with_settings(HalvedSettings), FedProxClient)


def test_a_registered_method_runs_with_its_settings(halved, small, tmp_path):
    changes = {"models": "mlp", "num-server-rounds": 1, "num-clients": 2}
    methods = [{"strategy": "halved", "halved.mu": 2.0}, {"strategy": "fedprox", "fedprox.mu": 2.0}]
    own, same, other = (
        fedkd_flwr.run({**small, **changes, **method}, output_dir=tmp_path / str(n))
        for n, method in enumerate([*methods, {"strategy": "halved"}])
    )
    assert list(own.rounds["loss_mean"]) == list(same.rounds["loss_mean"])
    assert list(own.rounds["loss_mean"]) != list(other.rounds["loss_mean"])
    assert json.loads((own.path / "config.json").read_text())["config"]["halved.mu"] == 2.0
    assert FedProx.record.settings_type is not HalvedSettings


def test_only_the_run_that_uses_it_has_its_settings(halved):
    assert not [name for name in known_names() if name.startswith("halved")]
    with pytest.raises(ConfigError, match=r"no key halved\.mu"):
        read_config({"halved.mu": 2.0})
    with pytest.raises(ConfigError, match=r"no key halved.nu; did you mean halved.mu"):
        read_config({"strategy": "halved", "halved.nu": 2.0})
    with pytest.raises(ConfigError, match=r"halved.mu = -1: it should be greater"):
        read_config({"strategy": "halved", "halved.mu": -1})


def test_flower_is_given_own_settings_under_one_key(halved):
    own = {"halved.mu": 1e-05, "halved.rule": 'a "word", \\ = 1'}
    configuration = read_config({"strategy": "halved", "models": "mlp", **own})
    packed = configuration.for_flower()
    assert set(packed) == set(known_names())
    assert read_config(packed) == configuration
    assert configuration.settings.mu == 1e-05


def test_a_deployment_is_given_keys_that_flower_takes(tmp_path, monkeypatch):
    flwr, given = tmp_path / "flwr", tmp_path / "given.toml"
    last = f"for last; do :; done\ncp \"$last\" '{given}'"
    flwr.write_text(f"#!/bin/sh\n{last}\necho 'Finished. Run directory: run'\n")
    flwr.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))  # the command lies beside it
    configuration = read_config({"strategy": NEAREST, "nearest.sharpness": 3.0})
    run_deployment(configuration, "", on_line=print)
    taken = tomllib.loads(given.read_text())
    assert set(taken) <= set(known_names())
    assert read_config(taken) == configuration


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("halved.mu 2", "own-settings = 'halved.mu 2': write it as TOML"),
        ("} [x", "write it as TOML"),
        ("kt-pfl.rho = 2", "own-settings holds kt-pfl.rho, which is a key by itself"),
        ("seed = 2", "own-settings holds seed"),
        ("halved.nu = 2", "no key halved.nu"),
    ],
)
def test_own_settings_that_make_no_sense_are_refused(halved, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_config({"strategy": "halved", "models": "mlp", "own-settings": text})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_such_package:mine", "strategy: .*cannot be imported here"),
        (f"{HERE}:nothing", "holds no nothing"),
        (f"{HERE}:not_a_method", "is a int; it should be what fedkd_flwr.register returns"),
        ("nope", "strategy = 'nope': 'nope' is not one of kt-pfl, .* own as module:object"),
    ],
)
def test_a_name_that_is_no_method_is_refused(name, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_config({"strategy": name})
    assert "\n" not in str(refused.value)


class SharpenedSettings(own_method.NearestSettings):
    table = "sharpened"
    temperature: float = Field(default=2.0, gt=0)
    power: float = 1.0


class Mixin(Settings):
    power: float = 1.0


class MixedSettings(KTpFLSettings, Mixin):
    table = "mixed"


def test_an_inherited_setting_stays_in_the_table_of_the_parent_that_declared_it():
    nearest = own_method.NearestSettings.flat_keys()
    assert nearest == [*KTpFLSettings.flat_keys(), "nearest.sharpness"]
    sharpened = set(SharpenedSettings.flat_keys())
    # What a subclass declares again is its own.
    own = {"sharpened.temperature", "sharpened.power"}
    assert sharpened == {*nearest, *own} - {"kt-pfl.temperature"}
    assert MixedSettings.flat_keys() == ["mixed.power", *KTpFLSettings.flat_keys()]


def test_a_derived_method_reads_the_settings_of_its_parent(small, tmp_path):
    hot, default = (
        fedkd_flwr.run({**small, **changes}, strategy=NEAREST, output_dir=tmp_path / name)
        for name, changes in (("hot", {"kt-pfl.temperature": 10.0}), ("default", {}))
    )
    configuration = read_config({"strategy": NEAREST, "kt-pfl.temperature": 10.0})
    assert configuration.settings.temperature == 10.0
    assert configuration.warnings == []
    assert list(hot.rounds["loss_mean"]) != list(default.rounds["loss_mean"])


class NoTable(Settings):
    mu: float = 1.0


class TakenTable(Settings):
    table = "kt-pfl"
    mu: float = 1.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "kt-pfl"}, "'kt-pfl' cannot be registered"),
        ({"name": "a:b"}, "'a:b' cannot be registered"),
        ({"strategy": FedProxClient}, "strategy is .*; it should be a subclass of Personalized"),
        ({"client": FedProx}, "client is .*; it should be a subclass of PersonalClient"),
        ({"strategy": with_settings(NoTable)}, "NoTable needs a table, such as table = 'mine'"),
        ({"strategy": with_settings(TakenTable)}, "the table kt-pfl belongs to KTpFLSettings"),
    ],
)
def test_invalid_methods_are_not_registered(changes, sentence):
    given = {"name": "mine", "strategy": FedProx, "client": FedProxClient, **changes}
    with pytest.raises(CustomObjectError, match=sentence):
        fedkd_flwr.register(**given)
    assert "mine" not in REGISTERED
    assert "kt-pfl" in METHODS


def test_a_name_of_this_process_alone_is_refused_in_a_deployment(halved, small, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)
    configuration = read_config({**small, "models": "mlp", "strategy": "halved"})
    with pytest.raises(ConfigError, match="in this process, and a deployment has other ones"):
        run_deployment(configuration, "", print)


class LogitsClient(KTpFLClient):
    """Forgets the softmax."""

    def soft_predictions(self, images, temperature):
        probabilities = super().soft_predictions(images, temperature)
        return 3 * probabilities


@pytest.mark.parametrize(
    "changes", [{}, {"soft-predictions.clip-norm": 1.0, "soft-predictions.noise-multiplier": 0.1}]
)
def test_predictions_that_are_not_probabilities_are_refused(changes, small, tmp_path, logged):
    own = {**small, **changes, "strategy": (own_method.Nearest, LogitsClient)}
    with pytest.raises(TooFewRepliesError):
        fedkd_flwr.run(own, output_dir=tmp_path / "run")
    told = [line for line in logged() if "predictions has a row that sums to 3, not 1" in line]
    assert told and "such as softmax(logits)" in told[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda block: None,
            r"has the shape \(\) and the type object; return numbers \(4, 4\)",
        ),
        (lambda block: block[:2], r"has the shape \(2, 4\) and the type float64"),
        (lambda block: block * np.nan, "has negative or missing numbers"),
        (lambda block: block - 2 * np.eye(4), "has negative or missing numbers"),
        (lambda block: 2 * block, r"has rows that sum to \[2.0, .*\]; .* sum to \[1.0, "),
    ],
)
def test_coefficients_that_are_none_are_refused(change, sentence, small):
    class Changing(KTpFL):
        def updated_block(self, block, predictions, shares):
            return change(block)

    with pytest.raises(ValueError, match=f"Changing.updated_block {sentence}"):
        fedkd_flwr.run(small, models="mlp", strategy=(Changing, KTpFLClient))


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (lambda n: np.ones((n, n)), r"has rows that sum to \[4.0, 4.0, 4.0, 4.0\]; return numbers"),
        (lambda n: np.full(n, 1 / n), r"has the shape \(4,\) and the type float64"),
        (lambda n: 2 * np.eye(n) - np.full((n, n), 1 / n), "has negative or missing numbers"),
    ],
)
def test_weights_of_mixtures_that_are_none_are_refused(weights, sentence, small):
    class Mixing(MixtureStrategy):
        matrix_name = "weights"

        def weights_among(self, models):
            return weights(len(models))

    small |= {"models": "mlp", "num-clients": 4}
    with pytest.raises(ValueError, match=f"Mixing.weights_among {sentence}"):
        fedkd_flwr.run(small, strategy=(Mixing, ParameterClient))


class Moving(ParameterStrategy):
    """Writes the new model into the arrays of the old one, which the round's messages hold."""

    def aggregate_models(self, server_round, models):
        for kind, mean in self.average(models).items():
            self.state.model[kind][:] = mean
        return self.state


class Scaling(MixtureStrategy):
    matrix_name = "weights"

    def weights_among(self, models):
        for model in models.values():
            model["weights"] /= 2.0
        return np.eye(len(models))


class Centering(KTpFL):
    def updated_block(self, block, predictions, shares):
        predictions -= predictions.mean(axis=0)
        return block


class Clustering(PerFedCKT):
    def cluster(self, predictions, k):
        predictions *= 2
        return np.zeros(len(predictions), dtype=int)


@pytest.mark.parametrize(
    "own",
    [
        (Moving, FedAvgClient),
        (Scaling, ParameterClient),
        (Centering, KTpFLClient),
        (Clustering, PerFedCKTClient),
    ],
    ids=lambda own: own[0].__name__,
)
def test_a_hook_cannot_change_what_others_read(own, small):
    with pytest.raises(ValueError, match="is read-only"):
        fedkd_flwr.run(small, models="mlp", strategy=own)


def test_the_example_weighs_by_distance():
    settings = own_method.NearestSettings(sharpness=2.0)
    plan = read_config({"num-clients": 2}).run.server_plan()
    predictions = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    made = own_method.Nearest(plan, settings).updated_block(
        np.full((2, 2), 0.5), predictions, np.array([0.5, 0.5])
    )
    far = np.exp(-2.0 * 2.0)
    np.testing.assert_allclose(made, np.array([[1, far], [far, 1]]) / (1 + far))


@pytest.fixture
def sweep(tmp_path):
    def write(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return path

    return write


def asked_for(configurations, key):
    return [(c.run.strategy, c.defining().get(key)) for c in configurations.values()]


def test_a_grid_varies_settings_of_a_custom_method_for_that_method_alone(sweep, logged):
    methods = f'strategy = ["local", "kt-pfl", "{NEAREST}"]'
    runs = read_sweep(sweep(f"[grid]\n{methods}\nnearest.sharpness = [5.0, 20.0]\n"))
    key = "nearest.sharpness"
    assert asked_for(runs, key) == [
        ("local", None), ("kt-pfl", None), (NEAREST, 5.0), (NEAREST, 20.0)
    ]  # fmt: skip
    said = "Methods ignore the settings of others: local ignores {0}; kt-pfl ignores {0}."
    assert logged(logging.INFO) == [said.format(key)]


def test_settings_of_a_custom_method_are_taken_from_the_base_and_from_outside(sweep, logged):
    methods = f'[grid]\nstrategy = ["local", "{NEAREST}"]\n'
    key = "nearest.sharpness"
    expected = [("local", None), (NEAREST, 5.0)]
    assert asked_for(read_sweep(sweep(f"[base]\n{key} = 5.0\n{methods}")), key) == expected
    packed = read_sweep(sweep(f"[base]\nown-settings = '{key} = 5.0'\n{methods}"))
    assert asked_for(packed, key) == expected
    from_outside = read_sweep(sweep(methods), {key: 5.0})
    assert asked_for(from_outside, key) == expected
    assert len(logged(logging.INFO)) == 3
    # The runs of a sweep keep their names whichever way they are asked for.
    assert list(from_outside) == list(packed)


@pytest.mark.parametrize(
    ("strategies", "sentence"),
    [
        (["local", "kt-pfl"], r"the run with strategy = local, .*no key nearest\.sharpness"),
        (["local", f"{HERE}:nothing"], r"the run with strategy = .*:nothing, .*holds no nothing"),
    ],
)
def test_a_sweep_with_settings_that_no_method_has_is_refused(sweep, strategies, sentence):
    path = sweep(f"[grid]\nstrategy = {strategies}\nnearest.sharpness = [5.0]\n")
    with pytest.raises(ConfigError, match=sentence):
        read_sweep(path)
