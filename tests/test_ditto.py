"""Ditto (Li et al. 2021): FedAvg's global model, and a personal one held near it."""

import numpy as np
import pytest
from helpers import names_in_state
from two_clients import (
    CHANGES,
    assert_same_models,
    gradient,
    loss_on_test_data,
    training_data,
    witnessed,
)

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "ditto"}


# ---- The update ----------------------------------------------------------------------


def test_personal_models_persist_over_rounds_and_are_evaluated(small, tmp_path):
    """v by hand over two rounds: its center is each round's global model as it was sent."""
    run, finished = witnessed(small, tmp_path / "run", **{"ditto.personalization-weight": 1.5})
    losses = finished.clients.set_index(["round", "partition_id"])["loss"]
    for n in (0, 1):
        data, personal = training_data(small, n), run.down[1, "train", n]["weights"]
        for t in (1, 2):
            center = run.down[t, "train", n]["weights"]
            for _ in range(3):
                pull = np.float32(1.5) * (personal - center)
                personal = personal - np.float32(0.2) * (gradient(personal, *data) + pull)
            assert losses[t, n] == pytest.approx(loss_on_test_data(personal, small, n), abs=1e-5)
            following = run.down[t, "evaluate", n]["weights"]
            assert abs(losses[t, n] - loss_on_test_data(following, small, n)) > 1e-3


def test_the_global_part_is_fedavg_bit_for_bit(small, tmp_path):
    small |= {"batch-size": 16, "momentum": 0.9, "learning-rate": 0.05}
    ditto, finished = witnessed(small, tmp_path / "ditto")
    fedavg, expected = witnessed(small, tmp_path / "fedavg", strategy="fedavg")
    assert_same_models(ditto, fedavg)
    assert list(finished.clients["global_accuracy"]) == list(expected.clients["accuracy"])
    assert list(finished.clients["loss"]) != list(expected.clients["loss"])


def test_without_its_term_a_personal_model_is_trained_alone(small, tmp_path):
    """From the first global model on, no other client has a part in it."""
    free, finished = witnessed(small, tmp_path / "free", **{"ditto.personalization-weight": 0.0})
    last = finished.clients[finished.clients["round"] == 2]["loss"]
    for n in (0, 1):
        personal = free.down[1, "train", n]["weights"]
        for _ in range(6):
            personal = personal - np.float32(0.2) * gradient(personal, *training_data(small, n))
        assert last.iloc[n] == pytest.approx(loss_on_test_data(personal, small, n), abs=1e-5)


# ---- State and settings --------------------------------------------------------------


def test_two_rounds_equal_one_round_resumed_by_another(small, tmp_path):
    """The server keeps w, clients keep v."""
    whole = fedkd_flwr.run(small, output_dir=tmp_path / "whole")
    run = fedkd_flwr.run(small, output_dir=tmp_path / "run", num_server_rounds=1)
    assert names_in_state(run.path) == {"model/weights"}
    resumed = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=2)
    for column in ("loss", "global_accuracy", "personal_loss"):
        assert list(resumed.clients[column]) == list(whole.clients[column])


def test_a_client_that_never_took_part_is_evaluated_with_the_global_model(small, tmp_path):
    small |= {"fraction-train": 0.5, "num-server-rounds": 1}
    run, finished = witnessed(small, tmp_path / "run")
    (trained,) = run.trained(1)
    row = finished.clients.set_index("partition_id").loc[1 - trained]
    assert row["accuracy"] == row["global_accuracy"]
    sent = run.down[1, "evaluate", 1 - trained]["weights"]
    assert row["loss"] == pytest.approx(loss_on_test_data(sent, small, 1 - trained), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ditto.personalization-weight": -1.0}, "ditto.personalization-weight = -1.0: it should"),
        ({"models": "mlp,lenet"}, "ditto averages parameters and needs one architecture"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(changes, sentence, small):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config({**small, **changes})
    assert "\n" not in str(caught.value)
