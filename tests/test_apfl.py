"""APFL (Deng et al. 2020): a private model within a mixture, and the share that it learns."""

import numpy as np
import pytest
from by_hand import (
    CHANGES,
    gradient,
    loss_on_test_data,
    returned_weights,
    training_data,
    witnessed,
)
from helpers import breaking, run_with

RATE = np.float32(0.2)


@pytest.fixture
def small(small):
    return {**small, **CHANGES, "strategy": "apfl"}


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


def test_an_alpha_outside_of_its_interval_is_refused(small, tmp_path):
    boast = breaking(lambda reply: reply.content["metrics"].update({"alpha": 1.5}))
    run, _ = run_with(boast, small, tmp_path / "run")
    assert list(run.rounds["failures"]) == [1, 1]
