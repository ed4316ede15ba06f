"""pFedMe (Dinh et al. 2020): both models' steps, the server's, and FedAvg in the limit."""

import numpy as np
import pytest
from by_hand import (
    CHANGES,
    assert_same_models,
    gradient,
    loss_on_test_data,
    sizes_of,
    training_data,
    witnessed,
)

OWN = {
    "pfedme.personalization-weight": 2.0,
    "pfedme.personal-steps": 2,
    "pfedme.personal-learning-rate": 0.3,
    "pfedme.beta": 0.6,
}


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "pfedme"}


def by_hand(start, images, labels):
    """Take three steps on w with two on theta in each; lambda 2, sizes 0.2 and 0.3."""
    local = personal = start
    for _ in range(3):
        for _ in range(2):
            slope = gradient(personal, images, labels) + np.float32(2) * (personal - local)
            personal = personal - np.float32(0.3) * slope
        local = local - np.float32(0.2 * 2) * (local - personal)
    return local, personal


def test_w_follows_theta_and_the_server_follows_the_mean_of_w(small, tmp_path):
    run, finished = witnessed(small, tmp_path / "run", **OWN)
    data = [training_data(small, n) for n in (0, 1)]
    shares = sizes_of(small) / sizes_of(small).sum()
    model = run.down[1, "train", 0]["weights"]
    for t in (1, 2):
        for n in (0, 1):
            np.testing.assert_allclose(run.down[t, "train", n]["weights"], model, atol=2e-6)
        ends = [by_hand(model, *data[n]) for n in (0, 1)]
        for n, (local, personal) in enumerate(ends):
            np.testing.assert_allclose(run.up[t, "train", n]["weights"], local, atol=2e-6)
            assert np.abs(personal - local).max() > 1e-3
        model = (0.4 * model + 0.6 * shares @ [local for local, _ in ends]).astype(np.float32)
    np.testing.assert_allclose(run.down[2, "evaluate", 0]["weights"], model, atol=2e-6)
    assert finished.clients["global_accuracy"].between(0, 1).all()


def test_theta_is_what_is_evaluated(small, tmp_path):
    """Its loss on the test split, by hand; w would have another."""
    run, finished = witnessed({**small, "num-server-rounds": 1}, tmp_path / "run", **OWN)

    for n in (0, 1):
        local, personal = by_hand(run.down[1, "train", n]["weights"], *training_data(small, n))
        expected, other = (loss_on_test_data(weights, small, n) for weights in (personal, local))
        assert finished.clients["loss"].iloc[n] == pytest.approx(expected, abs=1e-5)
        assert abs(expected - other) > 1e-3


def test_one_step_per_round_equals_fedavg(small, tmp_path):
    """K = 1, beta = 1 and lambda times theta's step size = 1: w moves by -eta times f's slope."""
    small |= {"local-iterations": 1, "batch-size": 32, "num-server-rounds": 3}
    small |= {"pfedme.personalization-weight": 4.0, "pfedme.personal-learning-rate": 0.25}
    limit, _ = witnessed(small, tmp_path / "limit", **{"pfedme.personal-steps": 1})
    fedavg, _ = witnessed(small, tmp_path / "fedavg", strategy="fedavg")
    assert_same_models(limit, fedavg, 1e-6)
