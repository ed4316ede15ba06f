"""FedALA (Zhang et al. 2023): mixtures before training by hand, and their limits."""

import numpy as np
import pytest
from by_hand import (
    CHANGES,
    assert_same_models,
    gradient,
    loss_on_test_data,
    returned_weights,
    sizes_of,
    trained,
    training_data,
    witnessed,
)

from fedkd_flwr.clients.fedala import converged

HEAD = slice(785 * 100, None)
"""Numbers of the mlp's last layer in its vector."""

RATE = 20.0


@pytest.fixture
def small(small):
    own = {"strategy": "fedala", "fedala.sample-share": 1.0, "fedala.rate": RATE}
    return {**small, **CHANGES, **own}


def mixed(weights, own, sent):
    """Return the model at the start of a round; all are flat arrays, `weights` of the head."""
    start = np.array(sent)
    start[HEAD] = own[HEAD] + weights * (sent[HEAD] - own[HEAD])
    return start


def learned(weights, own, sent, data, epochs):
    for _ in range(epochs):
        slope = gradient(mixed(weights, own, sent), *data)[HEAD]
        weights = np.clip(weights - np.float32(RATE) * slope * (sent[HEAD] - own[HEAD]), 0, 1)
    return weights


@pytest.mark.parametrize("cohort", ["off", "on"])
def test_three_rounds_by_hand(cohort, small, tmp_path):
    """W is learned until convergence in the second round, and for one epoch in the third."""
    changes = {"cohort": cohort, "num-server-rounds": 3, "fedala.threshold": 1.0}
    run, finished = witnessed(small, tmp_path / "run", **changes)
    data = [training_data(small, n) for n in (0, 1)]
    shares = sizes_of(small) / sizes_of(small).sum()
    weights = [np.ones(1010, np.float32)] * 2
    back, ends = returned_weights(run), [None, None]
    for t in (1, 2, 3):
        sent = run.down[t, "train", 0]["weights"]
        if t > 1:
            np.testing.assert_allclose(sent, shares @ ends, atol=5e-6)
        for n in (0, 1):
            start = sent
            if t > 1:
                # A threshold above all differences is met as soon as it is looked at.
                weights[n] = learned(weights[n], ends[n], sent, data[n], 11 if t == 2 else 1)
                assert 0.01 < np.mean(weights[n] < 1) < 1
                start = mixed(weights[n], ends[n], sent)
            ends[n] = trained(start, *data[n], steps=3)
            np.testing.assert_allclose(back[t, n], ends[n], atol=5e-6)
    rows, sent = finished.clients.set_index(["round", "partition_id"]), shares @ ends
    sent = sent.astype(np.float32)
    for n in (0, 1):
        # The evaluated mixture takes one more epoch of W, which is not kept.
        own = ends[n]
        evaluated = mixed(learned(weights[n], own, sent, data[n], 1), own, sent)
        evaluated = evaluated.astype(np.float32)
        loss = loss_on_test_data(evaluated, small, n)
        assert rows.loc[(3, n), "loss"] == pytest.approx(loss, abs=2e-5)


def test_losses_have_converged_when_the_last_ten_differ_little():
    assert not converged([1.0] * 10, threshold=0.1)
    assert converged([1.0] * 11, threshold=0.1)
    assert converged([9.0] + [1.0, 1.1] * 5, threshold=0.06)
    assert not converged([9.0] + [1.0, 1.1] * 5, threshold=0.05)


def test_more_mixed_layers_than_the_model_has_are_all_of_it(small, tmp_path):
    runs = [witnessed(small, tmp_path / f"{p}", **{"fedala.mixed-layers": p})[0] for p in (2, 1000)]
    assert_same_models(*runs)
