"""Verdicts on real runs of methods without any effect, and on those with a planted gain."""

import numpy as np
import pytest
from scipy import stats

import fedkd_flwr
from fedkd_flwr.analysis.significance import LEVEL
from tests.null_methods import accuracy, false_claims, found_gains, stored_accuracies, tables_of

TABLES = 120


@pytest.mark.slow
def test_verdicts_keep_their_promises_on_real_runs():
    """False claims within `LEVEL` and the binomial error of the tables; a power of 80%."""
    found = stored_accuracies()
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


def test_the_stored_runs_are_those_of_today():
    """Rounding may turn the answers to a few of 900 test images; another order turns ten."""
    found = stored_accuracies()
    for order in (0, 1):
        assert accuracy(0, order) == pytest.approx(found[0, order], abs=0.004)
    assert found[0, 0] != pytest.approx(found[0, 1], abs=0.008)


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
