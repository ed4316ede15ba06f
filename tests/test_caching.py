"""Teachers that are reused for some rounds (SCARLET, Azuma et al. 2026): what is still sent."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import Witness, breaking, key_of, replacing, run_with, state_of
from test_hostile_replies import attacking, of_honest, run_among, silent

import fedkd_flwr
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.clients.soft_predictions import TEACHERS, SoftPredictionClient
from fedkd_flwr.data.public import public_subset
from strategies.core.caching import TeacherCache, packed_mask, unpacked_mask
from strategies.core.privacy import privacy_spent
from strategies.soft_predictions import SoftPredictionStrategy

POOL, P, K = 60, 40, 10


@pytest.fixture
def cached(small):
    """A run of five rounds of four perceptrons, whose teachers are reused for two rounds."""
    return {
        **small,
        "models": "mlp",
        "num-server-rounds": 5,
        "evaluate-every": 5,
        **{f"{table}.cache-rounds": 2 for table in ("kt-pfl", "ds-fl", "perfed-ckt")},
    }


def subset(server_round):
    return public_subset(POOL, P, 0, server_round).tolist()


def asked_by_hand(rounds, cache_rounds):
    """Follow each sample by itself: asked for when its teacher is missing or expired."""
    last_asked, asked = {}, {}
    for t in range(1, rounds + 1):
        asked[t] = [x for x in subset(t) if x not in last_asked or t - last_asked[x] > cache_rounds]
        last_asked |= dict.fromkeys(asked[t], t)
    return asked


# ---- What travels ----------------------------------------------------------------------


def test_a_teacher_prediction_is_reused_for_cache_rounds():
    made = np.array([0, 1, 2, 3], dtype=np.int32)
    cache = replace(TeacherCache.empty(1, 4), made=made)
    assert cache.due(np.arange(4), 4, 2).tolist() == [True, True, False, False]
    assert cache.due(np.arange(4), 4, 0).all()


def test_a_mask_travels_eight_samples_a_byte():
    mask = np.random.default_rng(0).random(41) < 0.5
    assert packed_mask(mask).nbytes == 6
    np.testing.assert_array_equal(unpacked_mask(packed_mask(mask), 41), mask)


@pytest.mark.parametrize("strategy", ["sim-pfl", "ds-fl"])
def test_only_missing_or_expired_predictions_are_requested_and_sent(strategy, cached, tmp_path):
    witness = Witness()
    run, _ = run_with(witness, cached, tmp_path / "run", strategy=strategy)
    asked = asked_by_hand(5, cache_rounds=2)
    sizes = [len(samples) for samples in asked.values()]
    assert sizes[0] == P and 0 < min(sizes) < max(sizes[1:]) < P
    for t, samples in asked.items():
        for n in range(4):
            sent, got = witness.up[t, "train", n], witness.down[t, "train", n]
            assert sent["predictions"].shape == (len(samples), K)
            if t > 1:
                # All were there in the round before, and hold what was taught earlier.
                assert got["teacher"].shape == (len(asked[t - 1]), K)
                positions = np.isin(subset(t - 1), asked[t - 1])
                mask = unpacked_mask(got["taught"], P) if "taught" in got else np.ones(P, bool)
                np.testing.assert_array_equal(mask, positions)
    assert (run.rounds["failures"] == 0).all()
    assert run.rounds["numbers_up"].tolist() == [4 * size * K for size in sizes]


def test_a_method_with_fixed_samples_exchanges_all_or_nothing(cached, tmp_path):
    run = fedkd_flwr.run({**cached, "strategy": "perfed-ckt"}, output_dir=tmp_path / "run")
    assert run.rounds["numbers_up"].tolist() == [4 * P * K, 0, 0, 4 * P * K, 0]
    centroids = run.rounds["numbers_down"] > 100
    assert centroids.tolist() == [False, True, False, False, True]
    # Clients go on learning from the centroids that they hold.
    assert run.clients.query("round > 1 and numbers_up >= 0")["cluster"].notna().all()


@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt", "ds-fl"])
def test_a_client_distills_from_the_teacher_that_was_sent(strategy, cached, tmp_path, monkeypatch):
    """Whoever was away, came later or was not heard: what it holds and gets is the whole."""
    taught, learned = {}, {}
    aggregate, teachers = SoftPredictionStrategy.aggregate, SoftPredictionClient.teachers

    def watched_aggregate(self, server_round, replies):
        state = aggregate(self, server_round, replies)
        taught[server_round] = state.teachers.copy(), self.teachers_are_personal
        return state

    def watched_teachers(self, name, received, drawn_in):
        teacher = teachers(self, name, received, drawn_in)
        if teacher is not None:
            learned[self.run_round, self.partition_id] = teacher.numpy()
        return teacher

    def app(message, context):
        server_round, _, n = key_of(message, context)
        monkeypatch.setattr(SoftPredictionClient, "run_round", server_round, raising=False)
        if (server_round, n) == (3, 1):
            raise RuntimeError("away")
        return client_app(message, context)

    monkeypatch.setattr(SoftPredictionStrategy, "aggregate", watched_aggregate)
    monkeypatch.setattr(SoftPredictionClient, "teachers", watched_teachers)
    changes = {"strategy": strategy, "fraction-train": 0.75, "num-server-rounds": 6}
    run, _ = run_with(app, cached, tmp_path / "run", **changes)
    assert run.rounds["failures"].tolist() == [0, 0, 1, 0, 0, 0]
    assert len(learned) == 3 * 5 - 1
    for (t, n), teacher in learned.items():
        whole, personal = taught[t - 1]
        np.testing.assert_array_equal(teacher, whole[n] if personal else whole)


def test_the_bytes_fall_and_no_cache_is_another_run(cached, tmp_path):
    def traffic(name, **changes):
        settings = {**cached, "strategy": "kt-pfl", **changes}
        rounds = fedkd_flwr.run(settings, output_dir=tmp_path / name).rounds
        return rounds["bytes_up"].sum(), rounds["bytes_down"].sum(), rounds["loss_mean"].iloc[-1]

    none = traffic("none", **{"kt-pfl.cache-rounds": 0})
    some = traffic("some")
    assert some[0] < 0.75 * none[0] and some[1] < 0.75 * none[1]
    assert some[2] != none[2]
    eight_bits = traffic("int8", **{"kt-pfl.number-format": "int8"})
    assert eight_bits[0] < 0.6 * some[0]


# ---- What can go wrong -----------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["kt-pfl", "perfed-ckt"])
def test_a_continued_run_is_bit_identical(strategy, cached, tmp_path):
    cached |= {"strategy": strategy, "fraction-train": 0.75, "evaluate-every": 1}
    whole = fedkd_flwr.run(cached, output_dir=tmp_path / "whole")
    fedkd_flwr.run(cached, output_dir=tmp_path / "run", num_server_rounds=2)
    longer = fedkd_flwr.resume(tmp_path / "run", num_server_rounds=5)
    for column in ("loss_mean", "bytes_up", "bytes_down"):
        assert list(longer.rounds[column]) == list(whole.rounds[column])
    states = [state_of(tmp_path / name) for name in ("run", "whole")]
    assert {"cache/teachers", "cache/made", "cache/holds"} < set(states[0])
    for name, array in states[1].items():
        np.testing.assert_array_equal(states[0][name], array)


def test_a_client_that_lost_its_memory_receives_everything_again(cached, tmp_path, monkeypatch):
    witness = Witness()

    def app(message, context):
        server_round, _, n = key_of(message, context)
        if (server_round, n) == (3, 1):
            del context.state[TEACHERS]
        return witness(message, context)

    run, _ = run_with(app, cached, tmp_path / "run", strategy="kt-pfl")
    failures = run.clients.dropna(subset="failure")
    assert failures[["round", "partition_id"]].to_numpy().tolist() == [[3, 1]]
    assert "has lost teacher predictions" in failures["failure"].iloc[0]
    assert witness.down[4, "train", 1]["teacher"].shape == (P, K)
    assert witness.down[4, "train", 0]["teacher"].shape[0] < P


@pytest.mark.parametrize("strategy", ["ds-fl", "perfed-ckt"])
def test_a_reply_with_unrequested_entries_is_dropped(strategy, cached, tmp_path):
    everything = np.full((P, K), 1 / K, dtype=np.float32)
    app = breaking(replacing(predictions=everything), only_round=2)
    run, _ = run_with(app, cached, tmp_path / "run", strategy=strategy)
    (failure,) = run.clients["failure"].dropna()
    assert "instead of" in failure


def test_no_attack_changes_the_results_of_other_clients(cached, tmp_path):
    runs = [run_among(app, "ds-fl", cached, tmp_path / app.__name__) for app in (attacking, silent)]
    columns = ["round", "partition_id", "loss", "train_loss", "numbers_up", "numbers_down"]
    of_attacked, of_quiet = (of_honest(run, columns) for run in runs)
    np.testing.assert_array_equal(of_attacked, of_quiet)


def test_unrequested_predictions_cost_no_privacy(cached, tmp_path):
    noise = {"perfed-ckt.clip-norm": 1.0, "perfed-ckt.noise-multiplier": 5.0}
    witness = Witness()
    run, _ = run_with(witness, {**cached, **noise}, tmp_path / "run", strategy="perfed-ckt")
    expected = [privacy_spent(5.0, releases, 1e-5) for releases in (1, 1, 1, 2, 2)]
    np.testing.assert_allclose(run.rounds["epsilon"], expected)
    # Training losses are private in rounds without a release too.
    assert "train-loss" not in witness.metrics[2, "train", 0]
