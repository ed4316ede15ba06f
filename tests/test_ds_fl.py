"""DS-FL (Itahara et al. 2021): the sharpened mean, FedMD where nothing is sharpened."""

import numpy as np
from helpers import random_simplex, reply_with

from strategies.core.plan import RunPlan
from strategies.core.probabilities import softmax
from strategies.ds_fl import DSFL, DSFLSettings


def entropies(rows):
    return -(rows * np.log(rows)).sum(axis=-1)


def test_the_teacher_of_two_clients_by_hand():
    first, second = [[0.9, 0.1, 0.0]], [[0.5, 0.2, 0.3]]
    plan = RunPlan(num_clients=2, num_classes=3, public_size=1)
    strategy = DSFL(plan, DSFLSettings(era_temperature=0.1))
    strategy.state = strategy.begin({})
    assert strategy.train_payload(1, 0) == {}
    replies = {
        n: reply_with({"predictions": np.array(rows, dtype=np.float32)})
        for n, rows in enumerate((first, second))
    }
    strategy.state = strategy.aggregate(1, replies)
    exponentials = np.exp(np.array([0.7, 0.15, 0.15]) / 0.1)
    expected = exponentials / exponentials.sum()
    for n in (0, 1):
        np.testing.assert_allclose(strategy.train_payload(2, n)["teacher"], [expected], rtol=1e-5)


def test_sharpening_lowers_the_entropy_and_keeps_the_order():
    mean = random_simplex(np.random.default_rng(0), 50, 10)
    sharp, sharper = softmax(mean, 0.1), softmax(mean, 0.02)
    np.testing.assert_allclose(sharp.sum(axis=1), 1)
    assert (entropies(sharper + 1e-12) < entropies(sharp)).all()
    np.testing.assert_array_equal(np.argsort(sharp), np.argsort(mean))
    assert np.isfinite(softmax(mean, 1e-6)).all()
