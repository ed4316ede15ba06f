"""APFL (Deng et al. 2020): a private model within a mixture, and the share that it learns."""

import numpy as np
import pytest
from helpers import breaking, names_in_state, replacing, run_with
from two_clients import (
    CHANGES,
    assert_same_models,
    gradient,
    loss_on_test_data,
    returned_weights,
    training_data,
    witnessed,
)

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config

RATE = np.float32(0.2)


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "apfl"}


# ---- The update ----------------------------------------------------------------------


def by_hand(flat, run, partition_id, alpha, adaptive):
    """Yield w, v and alpha of a client after each of two rounds, by Algorithm 1."""
    data = training_data(flat, partition_id)
    v = run.down[1, "train", partition_id]["weights"]
    for t in (1, 2):
        w = run.down[t, "train", partition_id]["weights"]
        if adaptive:
            slope = np.dot(
                v - w, gradient(np.float32(alpha) * v + np.float32(1 - alpha) * w, *data)
            )
            alpha = min(1.0, max(0.0, alpha - 0.2 * float(slope)))
        a = np.float32(alpha)
        for _ in range(3):
            step = a * gradient(a * v + (1 - a) * w, *data)
            w, v = w - RATE * gradient(w, *data), v - RATE * step
        yield w, v, alpha


@pytest.mark.parametrize("adaptive", [True, False])
def test_two_rounds_by_hand(adaptive, small, tmp_path):
    changes = {"apfl.alpha": 0.3, "apfl.adaptive": adaptive}
    run, finished = witnessed(small, tmp_path / "run", **changes)
    rows = finished.clients.set_index(["round", "partition_id"])
    back = returned_weights(run)
    for n in (0, 1):
        for t, (w, v, alpha) in enumerate(by_hand(small, run, n, 0.3, adaptive), start=1):
            np.testing.assert_allclose(back[t, n], w, atol=2e-6)
            assert rows.loc[(t, n), "alpha"] == pytest.approx(alpha, abs=1e-6)
            following = run.down[t, "evaluate", n]["weights"]
            evaluated = (alpha * v + (1 - alpha) * following).astype(np.float32)
            expected = loss_on_test_data(evaluated, small, n)
            assert rows.loc[(t, n), "loss"] == pytest.approx(expected, abs=1e-5)
    # In the first round v is w, and so alpha has no slope.
    assert (rows.loc[1, "alpha"] == 0.3).all()
    assert (rows.loc[2, "alpha"] != 0.3).all() == adaptive


def test_alpha_stays_in_its_interval(small, tmp_path):
    small |= {"learning-rate": 0.5, "partition": "k-classes", "apfl.alpha": 0.01}
    _, finished = witnessed(small, tmp_path / "run")
    assert list(finished.clients["alpha"]) == [0.01, 0.01, 1.0, 1.0]


def test_the_global_part_is_fedavg_bit_for_bit(small, tmp_path):
    small |= {"batch-size": 16, "momentum": 0.9, "learning-rate": 0.05}
    apfl, finished = witnessed(small, tmp_path / "apfl")
    fedavg, expected = witnessed(small, tmp_path / "fedavg", strategy="fedavg")
    assert_same_models(apfl, fedavg)
    assert list(finished.clients["global_accuracy"]) == list(expected.clients["accuracy"])


@pytest.mark.parametrize(("alpha", "method"), [(0.0, "fedavg"), (1.0, "local")])
def test_at_its_ends_it_is_fedavg_and_local_bit_for_bit(alpha, method, small, tmp_path):
    small |= {"batch-size": 16, "momentum": 0.9, "learning-rate": 0.05, "apfl.adaptive": False}
    runs = [
        fedkd_flwr.run({**small, "apfl.alpha": alpha}, output_dir=tmp_path / "apfl"),
        fedkd_flwr.run({**small, "strategy": method}, output_dir=tmp_path / method),
    ]
    assert list(runs[0].clients["loss"]) == list(runs[1].clients["loss"])


# ---- State and settings --------------------------------------------------------------


def test_two_rounds_equal_one_round_resumed_by_another(small, tmp_path):
    """The server keeps w, clients keep v and alpha."""
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    fedkd_flwr.run(small, output_dir=tmp_path / "run", num_server_rounds=1)
    assert names_in_state(tmp_path / "run") == {"model/weights"}
    resumed = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    for column in ("loss", "global_accuracy", "alpha"):
        assert list(resumed.clients[column]) == list(whole.clients[column])


def test_a_model_that_is_not_finite_is_refused(small, tmp_path):
    weights = np.full(79510, np.nan, np.float32)
    run, _ = run_with(breaking(replacing(weights=weights)), small, tmp_path / "run")
    assert list(run.rounds["failures"]) == [1, 1]


def test_an_alpha_outside_of_its_interval_is_refused(small, tmp_path):
    def boast(reply):
        reply.content["metrics"]["alpha"] = 1.5

    run, _ = run_with(breaking(boast), small, tmp_path / "run")
    assert list(run.rounds["failures"]) == [1, 1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"apfl.alpha": 1.5}, "apfl.alpha = 1.5: it should be less than or equal to 1"),
        ({"models": "mlp,lenet"}, "apfl averages parameters and needs one architecture"),
        ({"dp-sgd-noise-multiplier": 1.0}, "apfl uses training samples outside of plain local"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes, sentence, small):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config({**small, **changes})
    assert "\n" not in str(caught.value)
