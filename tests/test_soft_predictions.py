"""Soft predictions on the wire, their privacy, and their mixing."""

import itertools
import os
import secrets

import numpy as np
import pytest
import torch
from helpers import Witness, client_of, first_job, run_with, stopped
from hypothesis import given
from hypothesis import strategies as draw
from scipy.stats import kstest

import fedkd_flwr
from fedkd_flwr.config import ConfigError, read_config
from strategies.core.metrics import metrics_of
from strategies.core.mixing import weighted_median
from strategies.core.plan import RunPlan
from strategies.core.privacy import (
    clip_towards_uniform,
    epsilon_of,
    noised_predictions,
    privacy_spent,
    secret_normal,
)
from strategies.core.probabilities import NUMBER_FORMATS, NotOnSimplexError, check_simplex
from strategies.core.replies import InvalidReplyError, checked_arrays, encoded
from strategies.kt_pfl import KTpFL, KTpFLSettings


def simplex_rows(seed, *shape):
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], 0.5), shape[:-1])


# ---- Numbers on the wire ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bytes_a_number", "error"),
    [("float32", 4, 1e-7), ("float16", 2, 1e-3), ("int8", 1, 0.01)],
)
def test_a_number_format_loses_no_more_than_it_says(name, bytes_a_number, error):
    wire = NUMBER_FORMATS[name]
    sent = simplex_rows(0, 3, 20, 10).astype(np.float32)
    arrays = wire.encode("teacher", sent)
    due = wire.parts("teacher", sent.shape)
    assert {k: (v.shape, v.dtype) for k, v in arrays.items()} == {
        k: (v.shape, v.dtype) for k, v in due.items()
    }
    assert arrays["teacher"].nbytes == bytes_a_number * sent.size
    received = wire.received("teacher", arrays)
    assert received.dtype == np.float32
    np.testing.assert_allclose(received, sent, atol=error)
    np.testing.assert_allclose(received.sum(axis=-1), 1, atol=1e-6)
    assert np.abs(wire.decode("teacher", arrays).sum(axis=-1) - 1).max() < wire.tolerance(10)


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_negative_numbers_within_the_tolerance_become_zero(name):
    """A mixture with a negative entry has no logarithm, and stops all who learn from it."""
    wire = NUMBER_FORMATS[name]
    sent = np.array([[-9e-4, 0.3, 0.7009]], dtype=np.float32)
    (read,) = wire.checked("predictions", wire.encode("predictions", sent))
    assert read[0] == 0
    np.testing.assert_allclose(read[1:], sent[0, 1:], rtol=2e-3)


@given(draw.floats(0, 1), draw.integers(2, 100))
def test_equal_probabilities_survive_eight_bits(scale, classes):
    wire = NUMBER_FORMATS["int8"]
    uniform = np.full((4, classes), 1 / classes, dtype=np.float32)
    np.testing.assert_allclose(wire.received("p", wire.encode("p", uniform)), uniform, rtol=1e-6)


def test_an_invalid_quantization_range_is_refused():
    plan = RunPlan(num_clients=2, num_classes=3, public_size=4)
    strategy = KTpFL(plan, KTpFLSettings(number_format="int8"))
    strategy.restore(0, {}, {})
    due = strategy.expected_arrays(1, 0)
    sent = simplex_rows(1, 4, 3)
    honest = NUMBER_FORMATS["int8"].encode("predictions", sent)
    read = checked_arrays(encoded(honest), due)
    assert read.keys() == {"predictions"}
    np.testing.assert_allclose(read["predictions"], sent, atol=0.01)
    for hostile in ([0, 9], [-3e38, 3e38], [-1e8, 1e8], [0.5, 0.1]):
        spoiled = {**honest, "predictions-range": np.array(hostile, dtype=np.float32)}
        with pytest.raises((InvalidReplyError, NotOnSimplexError), match="predictions"):
            checked_arrays(encoded(spoiled), due)


# ---- Mixing ----------------------------------------------------------------------------


def median_by_sorting(weights, values):
    """The smallest value up to which half the weight lies, and the largest; their middle."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    low = values[order][np.searchsorted(below, 0.5 - 1e-12)]
    high = values[order][np.searchsorted(below, 0.5 + 1e-12)]
    return (low + high) / 2


def test_the_weighted_median_entry_by_entry():
    predictions = simplex_rows(2, 5, 3, 4)
    weights = simplex_rows(3, 6, 5)
    expected = np.empty((6, 3, 4))
    for n, x, k in itertools.product(range(6), range(3), range(4)):
        expected[n, x, k] = median_by_sorting(weights[n], predictions[:, x, k])
    np.testing.assert_allclose(weighted_median(weights, predictions), expected)


# ---- Privacy ---------------------------------------------------------------------------


@given(draw.integers(0, 1000), draw.integers(2, 12), draw.floats(1e-3, 20))
def test_clipped_predictions_are_on_the_simplex_and_no_farther_than_the_bound(seed, classes, bound):
    predictions = simplex_rows(seed, 7, classes)
    clipped = clip_towards_uniform(predictions, bound)
    assert np.linalg.norm(clipped - 1 / classes) <= bound * (1 + 1e-9)
    assert (clipped >= 0).all()
    np.testing.assert_allclose(clipped.sum(axis=1), 1)
    if np.linalg.norm(predictions - 1 / classes) <= bound:
        np.testing.assert_allclose(clipped, predictions, atol=1e-12)


def test_the_noise_has_the_standard_deviation_of_the_accountant(monkeypatch):
    monkeypatch.setattr("strategies.core.privacy.project_onto_simplex", lambda rows, mass: rows)
    uniform = np.full((400, 10), 0.1)
    noise = (
        noised_predictions(uniform, 0.7, 1.5, np.random.default_rng(0).standard_normal) - uniform
    )
    assert noise.std() == pytest.approx(1.5 * 2 * 0.7, rel=0.03)
    assert abs(noise.mean()) < 0.1


def test_a_row_that_is_no_number_voids_no_clipping():
    """With such a row the norm was no number, and all other rows left unclipped."""
    predictions = np.eye(10)[np.arange(50) % 10]
    for broken in (np.nan, np.inf, -np.inf):
        spoilt = predictions.copy()
        spoilt[7, 3] = broken
        clipped = clip_towards_uniform(spoilt, 0.5)
        assert np.linalg.norm(clipped - 0.1) <= 0.5 * (1 + 1e-9)
        np.testing.assert_allclose(clipped[7], 0.1)
        released = noised_predictions(spoilt, 0.5, 2.0)
        check_simplex(released, "released")
        # Classes were recovered from every row; by chance it is one of ten.
        assert (released.argmax(axis=1) == predictions.argmax(axis=1)).mean() < 0.5


def test_secret_noise_is_normal_and_never_the_same():
    drawn = secret_normal((200, 100))
    assert kstest(drawn.ravel(), "norm").pvalue > 1e-4
    assert not np.isin(secret_normal((200, 100)), drawn).any()
    assert secret_normal((0, 3)).shape == (0, 3)


def test_large_secret_noise_leaves_no_holes(monkeypatch):
    """Beyond 6.6, numbers of 53 bits lay further apart than the sums to which DP-SGD rounds."""
    lowest = bytes(80_000)
    monkeypatch.setattr(secrets, "token_bytes", lambda size: lowest + os.urandom(size - 80_000))
    drawn = secret_normal((10_000,))
    assert drawn.max() < -8
    assert len(np.unique(drawn)) == 10_000


def test_epsilon_of_runs_with_different_noise():
    """RDP adds up: releases with noise z are as many as their share of those with noise 1."""
    assert epsilon_of({2.0: 4, 1.0: 1}, 1e-5) == pytest.approx(privacy_spent(1.0, 2, 1e-5))
    assert epsilon_of({2.0: 0}, 1e-5) == 0


def test_epsilon_against_the_bound_known_for_gaussian_releases():
    """RDP of order a is a T / (2 z²); its best order gives epsilon at most this."""
    for multiplier, releases in ((1.0, 1), (4.0, 20), (10.0, 200)):
        rho = releases / (2 * multiplier**2)
        classic = rho + 2 * np.sqrt(rho * np.log(1e5))
        spent = privacy_spent(multiplier, releases, 1e-5)
        assert 0.7 * classic < spent <= classic
    assert privacy_spent(1.0, 0, 1e-5) == 0


@pytest.fixture
def private(small):
    return {
        **small,
        "strategy": "kt-pfl",
        "soft-predictions.clip-norm": 1.0,
        "soft-predictions.noise-multiplier": 5.0,
    }


def test_epsilon_grows_round_by_round_and_survives_a_resume(private, tmp_path):
    private |= {"num-server-rounds": 3}
    run = fedkd_flwr.run(private, output_dir=tmp_path / "run")
    expected = [privacy_spent(5.0, releases, 1e-5) for releases in (1, 2, 3)]
    np.testing.assert_allclose(run.rounds["epsilon"], expected)
    longer = fedkd_flwr.resume(stopped(private, tmp_path / "stopped", last_round=2))
    np.testing.assert_allclose(longer.rounds["epsilon"], expected)


def test_noise_is_new_each_time_unless_seeded(private, tmp_path):
    def last_loss(name, **changes):
        return (
            fedkd_flwr.run({**private, **changes}, output_dir=tmp_path / name)
            .rounds["loss_mean"]
            .iloc[-1]
        )

    assert last_loss("a") != last_loss("b")
    seeded = {"soft-predictions.noise-seed": 7}
    assert last_loss("c", **seeded) == last_loss("d", **seeded)


def test_with_noise_a_client_reports_of_its_training_only_steps_that_its_size_tells(
    private, tmp_path
):
    def reported(name, **changes):
        witness = Witness()
        run_with(witness, private, tmp_path / name, **changes)
        replies = [m for (_, phase, _), m in witness.metrics.items() if phase == "train"]
        assert len(replies) == 2 * 4
        # The counts of evaluations may travel with the reply.
        counts = {count.name for count in metrics_of(["own", "distilled"])}
        return {name for metrics in replies for name in metrics} - counts

    assert reported("noised") == {"gradient-steps"}
    plain = {"soft-predictions.noise-multiplier": 0.0}
    told = {"train-loss", "distillation-loss", "moved-private", "moved-public", "gradient-steps"}
    assert reported("plain", **plain) == told


def test_noise_without_clipping_is_refused(small):
    with pytest.raises(
        ConfigError, match=r"soft-predictions.noise-multiplier = 2 needs soft-predictions.clip-norm"
    ):
        read_config({**small, "strategy": "kt-pfl", "soft-predictions.noise-multiplier": 2.0})
    with pytest.raises(ConfigError, match=r"soft-predictions\.number-format"):
        read_config({**small, "soft-predictions.number-format": "int4"})
    with pytest.raises(ConfigError, match=r"no key fedavg-ft\.noise"):
        read_config({**small, "fedavg-ft.noise-multiplier": 1.0})


def test_noise_on_which_accounting_overflows_is_refused(small):
    """A node whose ledger had a line of it answered no message any more."""
    key = "soft-predictions.noise-multiplier"
    private = {**small, "strategy": "kt-pfl", "soft-predictions.clip-norm": 1.0}
    assert epsilon_of({read_config({**private, key: 1e4}).settings.noise_multiplier: 1}, 1e-5) >= 0
    with pytest.raises(ConfigError, match=key):
        read_config({**private, key: 1e155})


# ---- The order of public batches -------------------------------------------------------


def public_order(small, strategy, partition_id, server_round):
    """Return the positions of the public samples on which a client trains first in a round."""
    client = client_of(small, partition_id, strategy=strategy, models="mlp")
    # Each sample's teacher is its own position.
    teacher = torch.arange(client.session.run.plan.public_size).unsqueeze(1)
    if strategy == "perfed-ckt":
        job = first_job(client.co_distill, client.session.public_images(0), teacher, server_round)
        return torch.cat([batch[3] for batch in itertools.islice(job.batches, 3)])
    job = first_job(client.distill, teacher, server_round)
    return torch.cat([batch[1] for batch in job.batches])


@pytest.mark.parametrize("strategy", ["kt-pfl", "fedmd", "ds-fl", "perfed-ckt"])
def test_public_batches_have_one_order_for_all_clients_and_another_in_each_round(small, strategy):
    one, other, later = (public_order(small, strategy, *at) for at in ((0, 2), (1, 2), (0, 3)))
    assert torch.equal(one, other)
    assert not torch.equal(one, later)
