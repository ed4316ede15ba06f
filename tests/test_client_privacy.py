"""Differential privacy of clients in the mean of their models."""

import numpy as np
import pytest
from helpers import Witness, run_with
from scipy import stats

import fedkd_flwr
from fedkd_flwr.config import ConfigError, methods_with, read_config
from fedkd_flwr.methods import METHODS
from strategies.core.client_privacy import noised_mean
from strategies.core.privacy import privacy_spent

RANDOM = np.random.default_rng(0)
START = {"weights": RANDOM.normal(size=5).astype(np.float32), "alphas": np.ones(2, np.float32)}
MODELS = [
    {kind: (vector + RANDOM.normal(size=len(vector)) * size).astype(np.float32)
     for kind, vector in START.items()}
    for size in (0.01, 1.0, 1e6)
]  # fmt: skip


def flat(model):
    return np.concatenate([model[kind] for kind in START]).astype(np.float64)


@pytest.fixture
def private(small):
    changes = {"strategy": "fedavg", "models": "mlp", "max-samples": 300, "local-iterations": 2}
    return {**small, **changes, "client-dp-noise-multiplier": 1.0, "client-dp-clip-norm": 0.1}


def no_noise(shape):
    return np.zeros(shape)


def test_updates_are_clipped_as_one_vector():
    start = flat(START)
    updates = [flat(model) - start for model in MODELS]
    clipped = [update * min(1, 0.7 / np.linalg.norm(update)) for update in updates]
    found = flat(noised_mean(START, MODELS, 0.7, 1.0, no_noise))
    np.testing.assert_allclose(found, start + np.mean(clipped, axis=0), rtol=1e-5)
    assert noised_mean(START, MODELS, 0.7, 1.0)["weights"].dtype == np.float32


def test_no_client_moves_the_mean_by_more_than_the_sensitivity():
    whole = flat(noised_mean(START, MODELS, 0.7, 1.0, no_noise))
    opposite = {kind: 2 * START[kind] - vector for kind, vector in MODELS[2].items()}
    other = flat(noised_mean(START, [*MODELS[:2], opposite], 0.7, 1.0, no_noise))
    assert np.linalg.norm(whole - other) == pytest.approx(2 * 0.7 / 3, rel=1e-4)


def test_noise_is_normal_with_the_stated_deviation():
    start = {"weights": np.zeros(4000, dtype=np.float32)}
    noised = noised_mean(start, [start] * 5, 3.0, 2.0)["weights"]
    assert stats.kstest(noised / (2.0 * 2 * 3.0 / 5), "norm").pvalue > 1e-4


def test_the_global_model_is_the_noised_mean_of_a_run(private, tmp_path, monkeypatch):
    monkeypatch.setattr("strategies.core.client_privacy.secret_normal", no_noise)
    monkeypatch.setattr(noised_mean, "__defaults__", (no_noise,))
    witness = Witness()
    run, _ = run_with(witness, private, tmp_path / "run")
    received = witness.down[1, "train", 0]["weights"].astype(np.float64)
    updates = [witness.up[1, "train", n]["weights"] - received for n in range(4)]
    clipped = [update * min(1, 0.1 / np.linalg.norm(update)) for update in updates]
    expected = received + np.mean(clipped, axis=0)
    np.testing.assert_allclose(witness.down[2, "train", 3]["weights"], expected, atol=1e-6)
    epsilons = [privacy_spent(1.0, releases, 1e-5) for releases in (1, 2)]
    assert list(run.rounds["client_dp_epsilon"]) == pytest.approx(epsilons)


def test_a_resumed_run_goes_on_counting(private, tmp_path):
    fedkd_flwr.run(private, num_server_rounds=1, output_dir=tmp_path / "run")
    run = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    epsilons = [privacy_spent(1.0, releases, 1e-5) for releases in (1, 2, 3)]
    assert list(run.rounds["client_dp_epsilon"]) == pytest.approx(epsilons)


def test_rounds_of_new_clients_release_no_mean(private, tmp_path):
    """No noised mean is released in them, and a run that is extended counts as one at once."""
    private |= {"strategy": "ditto", "new-clients": 0.25, "new-client-rounds": 3}
    fedkd_flwr.run(private, output_dir=tmp_path / "run")
    run = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=3)
    epsilons = [privacy_spent(1.0, releases, 1e-5) for releases in (1, 2, 3)]
    assert list(run.rounds["client_dp_epsilon"]) == pytest.approx(epsilons)
    assert run.round_rows[-1]["new_client_dp_epsilon"] == pytest.approx(epsilons[-1])


def test_accuracy_falls_with_noise(private, tmp_path):
    settings = {**private, "local-iterations": 10, "client-dp-clip-norm": 5.0, "max-samples": 0}
    accuracy = {
        noise: fedkd_flwr.run(
            {**settings, "client-dp-noise-multiplier": noise}, output_dir=tmp_path / str(noise)
        ).summary["last_round"]["accuracy_mean"]
        for noise in (1e-6, 2.0)
    }
    assert accuracy[1e-6] > accuracy[2.0] + 0.15


@pytest.mark.parametrize("strategy", methods_with("client_dp"))
def test_clients_receive_noised_means_alone(strategy, private, tmp_path):
    """All clients of a round receive the same arrays, and no array that a client has sent."""
    witness = Witness()
    run, _ = run_with(witness, {**private, "strategy": strategy}, tmp_path / "run")
    assert list(run.rounds["failures"]) == [0, 0]
    for kind in ("train", "evaluate"):
        messages = [arrays for (t, phase, _), arrays in witness.down.items() if phase == kind]
        assert {frozenset(arrays) for arrays in messages} == {frozenset({"weights"})}
    second = [witness.down[2, "train", n]["weights"] for n in range(4)]
    for received in second:
        np.testing.assert_array_equal(received, second[0])
    sent = [witness.up[1, "train", n]["weights"] for n in range(4)]
    assert np.linalg.norm(second[0] - np.mean(sent, axis=0)) > 1


def test_other_methods_models_and_averages_are_refused(private, tmp_path):
    for strategy in set(METHODS) - set(methods_with("client_dp")):
        with pytest.raises(ConfigError, match=r"needs validation|more than one mean"):
            read_config({**private, "strategy": strategy})
    with pytest.raises(ConfigError, match="set mixing = mean"):
        read_config({**private, "mixing": "median"})
    with pytest.raises(ConfigError, match="has batch normalization"):
        fedkd_flwr.run(private, models="tests.disclosure:NormedNet", output_dir=tmp_path / "run")


NORMED = {"models": "tests.disclosure:NormedNet"}


@pytest.mark.parametrize("strategy", ["fedavg", "fedper", "ditto"])
def test_averaged_variances_get_no_noise(strategy, private, tmp_path):
    """The server of a deployment starts a run without a look at the models before."""
    with pytest.raises(ConfigError, match=r"set models to mlp, lenet or cnn.*strategy = fedbn"):
        run_with(Witness(), {**private, **NORMED, "strategy": strategy}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_statistics_that_stay_on_clients_need_no_refusal(private, tmp_path):
    settings = {**private, **NORMED, "strategy": "fedbn"}
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    assert list(run.rounds["failures"]) == [0, 0]
    assert np.isfinite(run.clients["loss"]).all()
    with pytest.raises(ConfigError, match="samples do not mix"):
        fedkd_flwr.run({**settings, "dp-sgd-noise-multiplier": 1.0}, output_dir=tmp_path / "both")
