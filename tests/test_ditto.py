"""Ditto (Li et al. 2021): FedAvg's global model, and a personal one held near it."""

import numpy as np
import pytest
from by_hand import CHANGES, gradient, loss_on_test_data, training_data, witnessed


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "ditto"}


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


def test_a_client_that_never_took_part_is_evaluated_with_the_global_model(small, tmp_path):
    small |= {"fraction-train": 0.5, "num-server-rounds": 1}
    run, finished = witnessed(small, tmp_path / "run")
    (trained,) = run.trained(1)
    row = finished.clients.set_index("partition_id").loc[1 - trained]
    assert row["accuracy"] == row["global_accuracy"]
    sent = run.down[1, "evaluate", 1 - trained]["weights"]
    assert row["loss"] == pytest.approx(loss_on_test_data(sent, small, 1 - trained), abs=1e-5)
