"""Limits on one client in parameter methods: weights, updates, robust averages."""

import numpy as np
import pytest
from flwr.app import MetricRecord
from helpers import Witness, breaking, changing, most_of_them_slow, random_simplex, run_with
from scipy import stats

from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs.checkpoint import read_checkpoint
from strategies.core.mixing import (
    trimmed_mean,
    weighted_median,
    with_clipped_rows,
    with_clipped_updates,
)
from strategies.core.replies import Reply

INSIDER = 1
HUGE = 9e7
PARAMETERS = ("weights", "buffers", "control", "head-weight", "head-bias")
AVERAGING = [
    name
    for name, method in METHODS.items()
    if method.record.averages_parameters and name not in ("fedkd", "fedkma", "fedkma-uniform")
]


def claim(reply):
    numbers = dict(reply.content.metric_records["metrics"])
    reply.content["metrics"] = MetricRecord({**numbers, "num-examples": 10**9})


def changed_parameters(change):
    return changing(lambda arrays: {k: change(a) for k, a in arrays.items() if k in PARAMETERS})


HUGE_REPLY = changed_parameters(lambda array: np.full_like(array, HUGE))
FLIPPED = changed_parameters(lambda array: -10 * array)


@pytest.fixture
def small(small):
    """A run of one network, whose clients have equally many samples."""
    return {**small, "models": "mlp", "partition": "iid", "num-server-rounds": 1}


def final_model(run):
    state = read_checkpoint(run.path).state
    return np.concatenate(
        [v.ravel() for name, v in sorted(state.items()) if name.rpartition("/")[2] in PARAMETERS]
    )


# ---- Weights ---------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "share"), [(5.0, 5 / 8), (0.0, 1.0)])
def test_claimed_samples_weigh_at_most_a_multiple_of_the_median(small, tmp_path, cap, share):
    witness = Witness(breaking(claim, INSIDER, phase="properties"))
    settings = {**small, "strategy": "fedavg", "weight-cap": cap}
    run, _ = run_with(witness, settings, tmp_path / "run")
    sent = np.stack([witness.up[1, "train", n]["weights"] for n in range(4)])
    others = (1 - share) / 3
    expected = np.array([others, share, others, others]) @ sent
    np.testing.assert_allclose(final_model(run), expected, atol=1e-5)


@pytest.mark.parametrize("key", ["weight-cap", "update-cap"])
def test_a_limit_below_the_median_is_refused(small, key):
    with pytest.raises(ConfigError, match="it should be at least 1, or 0 for no limit"):
        read_config({**small, key: 0.5})


# ---- Updates ---------------------------------------------------------------------------


def test_a_long_update_keeps_its_direction_and_gets_the_limit():
    start = {"weights": np.array([1.0, 1.0], dtype=np.float32)}
    steps = [np.array(step, dtype=np.float32) for step in ([1, 0], [0, 2], [3, 0], [300, 400])]
    replies = {
        n: Reply(n, {"weights": start["weights"] + step}, {}) for n, step in enumerate(steps)
    }
    bounded = with_clipped_updates(replies, lambda _: start, multiple=4)
    assert all(bounded[n] is replies[n] for n in range(3))
    # The median norm is 2.5, so the limit is 10: (6, 8) from the start.
    np.testing.assert_allclose(bounded[3].arrays["weights"], [7, 9], rtol=1e-6)


def test_what_most_clients_return_unchanged_is_changed_by_nobody(caplog):
    start = {"alphas": np.ones(2, dtype=np.float32)}
    replies = {n: Reply(n, dict(start), {}) for n in range(3)}
    replies[1] = Reply(1, {"alphas": np.full(2, HUGE, dtype=np.float32)}, {})
    bounded = with_clipped_updates(replies, lambda _: start, multiple=10)
    assert bounded[0] is replies[0]
    np.testing.assert_array_equal(bounded[1].arrays["alphas"], start["alphas"])
    assert "Clipped: client 1" in caplog.text


@pytest.mark.parametrize("strategy", AVERAGING)
def test_one_huge_reply_does_not_ruin_the_model(small, tmp_path, strategy):
    settings = {**small, "strategy": strategy}
    honest, _ = run_with(client_app, settings, tmp_path / "honest")
    attacked, _ = run_with(breaking(HUGE_REPLY, INSIDER), settings, tmp_path / "run")
    largest = np.abs(final_model(honest)).max()
    assert np.abs(final_model(attacked)).max() < 10 * largest + 1
    assert attacked.rounds["accuracy_mean"].notna().all()


def test_factors_of_a_huge_update_are_clipped_too(small, tmp_path):
    spoil = changing(lambda arrays: {"factors": np.full_like(arrays["factors"], 1e3)})
    settings = {**small, "strategy": "fedkd"}
    run, _ = run_with(breaking(spoil, INSIDER), settings, tmp_path / "run")
    assert np.abs(final_model(run)).max() < 10


def test_a_long_row_keeps_its_direction_and_gets_the_limit():
    held = {0: [3.0, 4.0], 1: [0.0, 2.0], 2: [6.0, 8.0], 3: [900.0, 1200.0]}
    replies = {
        n: Reply(n, {"class-means": np.array([row, [0, 1e6]], dtype=np.float32)}, {})
        for n, row in held.items()
    }
    counted = np.array([True, False])
    bounded = with_clipped_rows(replies, "class-means", lambda _: counted, multiple=4)
    assert all(bounded[n] is replies[n] for n in range(3))
    # The median of 5, 2, 10 and 1500 is 7.5, so the limit is 30. The second row is ignored.
    np.testing.assert_allclose(bounded[3].arrays["class-means"], [[18, 24], [0, 1e6]])


def huge_class_means(arrays):
    signs = np.random.default_rng(0).choice([-1, 1], arrays["class-means"].shape)
    return {"class-means": (HUGE * signs).astype(np.float32)}


@pytest.mark.parametrize("strategy", ["fedproto", "fedtgp", "fedgh"])
def test_huge_class_means_do_not_ruin_the_shared_state(small, tmp_path, strategy, caplog):
    app = breaking(changing(huge_class_means), INSIDER)
    run, _ = run_with(app, {**small, "strategy": strategy}, tmp_path / "run")
    state = read_checkpoint(run.path).state
    assert max(np.abs(array).max() for array in state.values()) < 1e3
    assert "Clipped: client 1, a row of its class-means is" in caplog.text


# ---- Robust averages -------------------------------------------------------------------


@pytest.mark.parametrize("givers", [4, 8])
def test_equal_weights_give_the_statistics_of_numpy_and_scipy(givers):
    values = np.random.default_rng(0).normal(size=(givers, 3, 50))
    equal = np.full((2, givers), 1 / givers)
    for row in range(2):
        np.testing.assert_allclose(weighted_median(equal, values)[row], np.median(values, axis=0))
        np.testing.assert_allclose(
            trimmed_mean(equal, values)[row], stats.trim_mean(values, 0.25, axis=0)
        )


def test_whole_weights_count_as_copies():
    values = np.random.default_rng(1).normal(size=(3, 20))
    copies = np.repeat(values, [1, 4, 3], axis=0)
    weights = np.array([[1.0, 4.0, 3.0]]) / 8
    np.testing.assert_allclose(weighted_median(weights, values)[0], np.median(copies, axis=0))
    np.testing.assert_allclose(
        trimmed_mean(weights, values)[0], stats.trim_mean(copies, 0.25, axis=0)
    )


@pytest.mark.parametrize("mix", [weighted_median, trimmed_mean])
def test_a_quarter_of_the_weight_moves_no_entry_beyond_the_others(mix):
    generator = np.random.default_rng(2)
    weights = random_simplex(generator, 5, 6)
    weights = np.column_stack([weights * 0.75, np.full(5, 0.25)])
    honest = generator.normal(size=(6, 40)).astype(np.float32)
    for wrong in (HUGE, -HUGE):
        values = np.concatenate([honest, np.full((1, 40), wrong, dtype=np.float32)])
        mixed = mix(weights, values)
        assert (mixed >= honest.min(axis=0)).all()
        assert (mixed <= honest.max(axis=0)).all()


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ("median", lambda sent: np.median(sent, axis=0)),
        ("trimmed-mean", lambda sent: stats.trim_mean(sent, 0.25, axis=0)),
    ],
)
def test_fedavg_takes_the_robust_average_of_all_alike(small, tmp_path, mixing, expected):
    flipping = breaking(FLIPPED, INSIDER, answer=breaking(claim, INSIDER, phase="properties"))
    witness = Witness(flipping)
    settings = {**small, "strategy": "fedavg", "mixing": mixing, "update-cap": 0.0}
    run, _ = run_with(witness, settings, tmp_path / "run")
    sent = np.stack([witness.up[1, "train", n]["weights"] for n in range(4)])
    np.testing.assert_allclose(final_model(run), expected(sent), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedper", "lg-fedavg"])
def test_a_mean_weighs_clients_by_samples_or_alike(small, tmp_path, strategy, weighting):
    witness = Witness(client_app)
    uneven = {"partition": "dirichlet", "weight-cap": 0.0, "update-cap": 0.0}
    settings = {**small, **uneven, "strategy": strategy, "weighting": weighting}
    run, _ = run_with(witness, settings, tmp_path / "run")
    sizes = run.clients.set_index("partition_id")["num_examples"].sort_index()
    assert sizes.nunique() > 1
    models = (witness.up[1, "train", n] for n in range(len(sizes)))
    sent = [np.concatenate([m[kind].ravel() for kind in sorted(m)]) for m in models]
    weights = sizes if weighting == "samples" else None
    expected = np.average(sent, axis=0, weights=weights)
    np.testing.assert_allclose(final_model(run), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mixing", ["median", "trimmed-mean"])
@pytest.mark.parametrize("strategy", most_of_them_slow(AVERAGING))
def test_a_robust_average_holds_a_huge_reply_without_the_limit(small, tmp_path, strategy, mixing):
    one_cluster = {"hypcluster.clusters": 1, "fesem.clusters": 1}
    settings = {**small, **one_cluster, "strategy": strategy, "mixing": mixing, "update-cap": 0.0}
    honest, _ = run_with(client_app, settings, tmp_path / "honest")
    attacked, _ = run_with(breaking(HUGE_REPLY, INSIDER), settings, tmp_path / "run")
    accuracy = attacked.rounds["accuracy_mean"].iloc[-1]
    assert accuracy > honest.rounds["accuracy_mean"].iloc[-1] - 0.2
    assert attacked.rounds["loss_mean"].iloc[-1] < 10


def test_class_counts_weigh_no_more_than_the_size_that_counts(small, tmp_path):
    many = changing(
        lambda arrays: {
            "class-counts": np.full_like(arrays["class-counts"], 10**7),
            "class-means": np.full_like(arrays["class-means"], 50.0),
        }
    )
    app = breaking(many, INSIDER, answer=breaking(claim, INSIDER, phase="properties"))
    run, _ = run_with(app, {**small, "strategy": "fedproto"}, tmp_path / "run")
    prototypes = read_checkpoint(run.path).state["prototypes/prototypes"]
    assert not np.isclose(prototypes, 50, atol=1).any()
