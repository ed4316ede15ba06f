"""Verdicts on real runs of methods without any effect, and on those with a planted gain."""

import logging

import numpy as np
import pytest
from scipy import stats

import fedkd_flwr
from fedkd_flwr.analysis.significance import LEVEL
from tests.null_methods import accuracies, false_claims, found_gains, tables_of

TABLES = 120


@pytest.fixture(scope="module")
def found():
    logging.disable(logging.WARNING)
    yield accuracies()
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_verdicts_keep_their_promises_on_real_runs(found):
    """False claims within `LEVEL` and the binomial error of the tables; a power of 80%."""
    assert (found.std(axis=1) > 0).all()
    allowed = stats.binom.ppf(0.999, TABLES, LEVEL) / TABLES
    for seeds in (3, 5, 10):
        assert false_claims(found, seeds, TABLES) <= allowed
    # The same tables refute a rule that does not count the methods.
    generator = np.random.default_rng(3)
    every_seed_above = [
        (np.abs(np.sign(gains).sum(axis=1)) == 3).any()
        for gains in tables_of(found, 3, TABLES, generator)
    ]
    assert np.mean(every_seed_above) > 3 * allowed
    share, deviation = found_gains(found, 0.02, 10, TABLES, methods=1)
    assert deviation < 0.02
    assert share >= 0.8


def test_another_batch_order_changes_the_training_alone(small, tmp_path):
    flat = {**small, "strategy": "local", "models": "mlp", "num-server-rounds": 1}
    runs = [
        fedkd_flwr.run({**flat, "batch-order": order}, output_dir=tmp_path / str(number))
        for number, order in enumerate((0, 1, 1))
    ]
    losses = [run.clients["train_loss"].tolist() for run in runs]
    assert losses[0] != losses[1] == losses[2]
    split = [(run.path / "split.json").read_text() for run in runs]
    assert split[0] == split[1]
