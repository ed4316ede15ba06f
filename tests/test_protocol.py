"""One protocol for all methods: a method without its exchange is `local`, to the last digit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import assert_same_models, witnessed
from helpers import client_of
from torch import nn

import fedkd_flwr
from fedkd_flwr.clients.fedfomo import FedFomoClient
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.models.model_pool import borrowed
from fedkd_flwr.training.loop import DivergedError, keep_best_epoch
from strategies.lg_fedavg import LGFedAvg


@pytest.fixture(scope="module")
def settings():
    """Three rounds with momentum, in which every client takes part."""
    from conftest import SMALL

    changes = {"models": "mlp", "num-server-rounds": 3, "momentum": 0.9, "learning-rate": 0.02}
    return {**SMALL, **changes}


@pytest.fixture(scope="module")
def trained_alone(settings, tmp_path_factory):
    return run_of(settings, tmp_path_factory.mktemp("local"), "local")


def run_of(settings, folder, method, **changes):
    return fedkd_flwr.run({**settings, "strategy": method, **changes}, output_dir=folder / method)


def nothing_sent(monkeypatch, strategy):
    for hook in ("train_payload", "evaluate_payload"):
        monkeypatch.setattr(strategy, hook, lambda *_: {})


def without_averaged_head(monkeypatch):
    nothing_sent(monkeypatch, LGFedAvg)


def without_mixing(monkeypatch):
    monkeypatch.setattr(
        FedFomoClient, "weigh", lambda client, candidates: np.zeros(len(candidates))
    )


SEEDED = {"soft-predictions.noise-seed": 0}


@pytest.mark.parametrize(
    ("method", "changes", "arrange"),
    [
        ("fedper", {"fedper.personal-layers": 99}, None),
        ("lg-fedavg", {}, without_averaged_head),
        ("fml", {"fml.alpha": 1.0, "fml.shared-model": "mlp"}, None),
        ("fd", {"fd.gamma": 0.0}, None),
        ("fedproto", {"fedproto.prototype-weight": 0.0, "fedproto.predict": "head"}, None),
        ("ditto", {"ditto.personalization-weight": 0.0}, None),
        ("apfl", {"apfl.alpha": 1.0, "apfl.adaptive": False}, None),
        ("fedfomo", {}, without_mixing),
        ("kt-pfl", {"kt-pfl.distillation-epochs": 0}, None),
        ("privatekt", {"privatekt.distillation-epochs": 0, **SEEDED}, None),
    ],
)
def test_a_method_without_its_exchange_is_local(
    method, changes, arrange, settings, trained_alone, tmp_path, monkeypatch
):
    if arrange:
        arrange(monkeypatch)
    run = run_of(settings, tmp_path, method, **changes)
    for column in ("correct", "loss"):
        expected = list(trained_alone.clients[column])
        assert list(run.clients[column]) == expected, column


@pytest.fixture(scope="module")
def averaged(settings, tmp_path_factory):
    return witnessed(settings, tmp_path_factory.mktemp("fedavg") / "run", strategy="fedavg")


@pytest.mark.parametrize(
    ("method", "changes", "tolerance"),
    [
        ("apfl", {}, 0),
        ("ditto", {}, 0),
        ("fedala", {"fedala.mixed-layers": 0}, 0),
        ("fedbn", {}, 0),
        ("feddf", {"feddf.distillation-steps": 0}, 0),
        ("fedgen", {"fedgen.weight": 0.0}, 0),
        ("fedntd", {"fedntd.beta": 0.0}, 1e-6),
        ("fesem", {"fesem.clusters": 1}, 0),
        ("hypcluster", {"hypcluster.clusters": 1}, 0),
        ("spider", {}, 0),
        ("fedprox", {"fedprox.mu": 0.0}, 0),
        ("moon", {"moon.mu": 0.0}, 0),
        ("per-fedavg", {"per-fedavg.inner-learning-rate": 0.0}, 0),
        ("pfedgraph", {"pfedgraph.size-weight": 1e12, "pfedgraph.similarity-weight": 0}, 1e-6),
        ("scaffold", {"scaffold.correction": 0.0}, 1e-6),
    ],
)
def test_what_a_method_averages_without_its_addition_are_models_of_fedavg(
    method, changes, tolerance, settings, averaged, tmp_path
):
    """With batch normalization, FedBN is another; with their personal models, APFL and Ditto."""
    one, run = witnessed(settings, tmp_path / "run", strategy=method, **changes)
    fedavg, expected = averaged
    assert_same_models(one, fedavg, tolerance)
    if "global_accuracy" in run.clients:
        assert list(run.clients["global_accuracy"]) == list(expected.clients["accuracy"])


def test_fedmd_is_ds_fl_without_sharpening(settings, tmp_path):
    simple = {"ds-fl.aggregation": "simple", "ds-fl.distillation-learning-rate": 0.02}
    runs = [
        run_of(settings, tmp_path, "fedmd", **{"kt-pfl.temperature": 1.0}),
        run_of(settings, tmp_path, "ds-fl", **simple),
    ]
    assert list(runs[0].clients["loss"]) == list(runs[1].clients["loss"])


def test_kt_pfl_params_with_frozen_coefficients_is_fedavg(settings, tmp_path):
    frozen = {"kt-pfl-params.coefficient-learning-rate": 0.0}
    runs = [
        run_of(settings, tmp_path, "kt-pfl-params", **frozen),
        run_of(settings, tmp_path, "fedavg", weighting="uniform"),
    ]
    # One is evaluated after local training, the other before; both train the same models.
    np.testing.assert_allclose(*(list(run.clients["train_loss"]) for run in runs), rtol=1e-5)


def test_momentum_of_replaced_weights_is_not_kept(settings):
    kept = {}
    for method, changes in {
        "local": {},
        "fedavg": {},
        "fedper": {"fedper.personal-layers": 1},
    }.items():
        client = client_of({**settings, "strategy": method, **changes})
        client.train_locally(1)
        state = client.session.memory.load("optimizer") or {}
        kept[method] = {name.rpartition("/")[0] for name in state}
    parameters = [f"model/{name}" for name, _ in client.model.named_parameters()]
    assert kept["local"] == set(parameters)
    assert kept["fedavg"] == set()
    # Weight and bias of the head stay on the client.
    assert kept["fedper"] == set(parameters[-2:])


@pytest.mark.parametrize(("own", "shared"), [("lenet", "mlp"), ("mlp", "lenet")])
def test_momentum_of_the_own_model_outlives_training_a_replaced_one(own, shared, settings):
    """Either model may have more tensors than the other."""
    alone, client = (client_of({**settings, "strategy": "local", "models": own}) for _ in "ab")
    for server_round in (1, 2):
        alone.train_locally(server_round, replaced=())
        client.train_locally(server_round, replaced=())
        with borrowed(replace(client.architectures[0], name=shared)) as model:
            replaced = list(model.parameters())
            client.train_locally(server_round, model=model, replaced=replaced)
    kept, expected = (one.session.memory.load("optimizer") for one in (client, alone))
    assert kept.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(kept[name], tensor, rtol=0, atol=0)


def test_fedavg_with_fine_tuning_is_fedavg_ft(settings, tmp_path):
    runs = [
        run_of(settings, tmp_path, "fedavg", **{"fine-tune-epochs": 2}),
        run_of(settings, tmp_path, "fedavg-ft", **{"fedavg-ft.epochs": 2}),
    ]
    for column in ("loss", "fine_tuning_steps"):
        assert list(runs[0].clients[column]) == list(runs[1].clients[column])


def test_early_stopping_of_fine_tuning_lowers_no_clients_validation_accuracy(settings, tmp_path):
    """With this learning rate the last epoch is not every client's best."""
    split = {**settings, "client-split": "40/30/30", "learning-rate": 0.1}
    epochs = {"fine-tune-epochs": 6}
    plain, last, best = (
        run_of(split, tmp_path / name, "fedavg", **changes).clients
        for name, changes in {
            "plain": {},
            "last": epochs,
            "best": {**epochs, "fine-tune-early-stopping": True},
        }.items()
    )
    assert (last["validation_accuracy"] < plain["validation_accuracy"]).any()
    assert (best["validation_accuracy"] >= plain["validation_accuracy"]).all()
    assert (best["validation_accuracy"] >= last["validation_accuracy"]).all()
    assert (best["validation_accuracy"] > last["validation_accuracy"]).any()
    assert list(best["fine_tuning_steps"]) == list(last["fine_tuning_steps"])


def test_early_stopping_of_fine_tuning_needs_validation_data(settings):
    changes = {"fine-tune-early-stopping": True, "client-split": "70/0/30"}
    with pytest.raises(ConfigError, match=r"fine-tune-early-stopping needs .*validation data"):
        read_config({**settings, "strategy": "fedavg", **changes})


@pytest.mark.parametrize("models", ["mlp", "mlp,lenet"])
def test_local_with_the_same_projection_is_fedproto_without_its_term(models, settings, tmp_path):
    """Widths differ between mlp and lenet, so that both methods need the projection."""
    wide = {**settings, "models": models, "feature-width": 32}
    trained_alone = run_of(wide, tmp_path, "local")
    changes = {"fedproto.prototype-weight": 0.0, "fedproto.predict": "head"}
    run = run_of(wide, tmp_path, "fedproto", **changes)
    assert list(run.clients["loss"]) == list(trained_alone.clients["loss"])


# ---- Fine-tuning that keeps the best epoch on validation data ------------------------


@pytest.mark.parametrize(
    ("ranks", "best"),
    [
        ([(5, 0.0), (7, 0.0), (6, 0.0)], 1),
        ([(5, 0.0), (4, 0.0), (3, 0.0)], 0),
        ([(5, -0.3), (5, -0.2), (5, -0.2)], 1),
        ([(5, 0.0), (4, 0.0), (6, float("nan"))], 2),
    ],
)
def test_the_earliest_epoch_of_the_highest_rank_is_kept(ranks, best):
    model, left = untrained(), iter(ranks)
    keep_best_epoch(model, lambda: add_one(model), len(ranks) - 1, lambda: next(left))
    assert epochs_of(model) == best


def test_fine_tuning_that_diverges_ends_with_the_best_epoch_before():
    model, ranks = untrained(), iter([(1,), (2,)])

    def train():
        if epochs_of(model) == 1:
            nn.init.constant_(model.weight, torch.inf)
            raise DivergedError("training diverged")
        add_one(model)

    keep_best_epoch(model, train, 5, lambda: next(ranks))
    assert epochs_of(model) == 1


def add_one(model):
    with torch.no_grad():
        model.bias += 1


def untrained():
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.bias)
    return model


def epochs_of(model):
    return round(float(model.bias.detach()))
