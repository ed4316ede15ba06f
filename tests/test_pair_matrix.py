"""Matrices between clients: only clients that have trained are stored, and no entry differs."""

import shutil

import numpy as np
import pytest
from helpers import random_simplex, reply_with

import fedkd_flwr
from fedkd_flwr.runs import load_run
from fedkd_flwr.runs.folders import DamagedRunError
from strategies.core.mixing import weighted_mean
from strategies.core.plan import RunPlan
from strategies.core.probabilities import equal_weights, normalized_rows
from strategies.core.replies import ClientInfo
from strategies.core.state import STARTS, PairMatrix, whole_of
from strategies.kt_pfl import KTpFL, KTpFLSettings


@pytest.mark.parametrize(
    ("matrix", "whole"),
    [
        (PairMatrix.equal(5, [1, 4]), equal_weights(5, [1, 4])),
        (PairMatrix.equal(5, []), np.full((5, 5), 0.2)),
        (PairMatrix.identity(4), np.eye(4)),
        (PairMatrix.zeros(4), np.zeros((4, 4))),
    ],
)
def test_clients_that_have_trained_change_no_entry(matrix, whole):
    for members in ([], [2], [3, 0, 2]):
        met = matrix.with_members(members)
        assert met.values.shape == (len(members), len(members))
        np.testing.assert_array_equal(met.whole(), whole)


def test_changes_survive_later_clients_and_files():
    generator = np.random.default_rng(0)
    whole, matrix = equal_weights(7, [5]), PairMatrix.equal(7, [5])
    for repliers in ([3, 6], [0, 3], [1, 2, 6]):
        block = generator.random((len(repliers), len(repliers)))
        whole[np.ix_(repliers, repliers)] = block
        matrix = matrix.with_members(repliers).changed(repliers, repliers, block)
        np.testing.assert_array_equal(matrix.whole(), whole)
        np.testing.assert_array_equal(matrix.at([5, 1, 3], [3, 4]), whole[[5, 1, 3]][:, [3, 4]])
    assert matrix.members.tolist() == [0, 1, 2, 3, 6]
    np.testing.assert_array_equal(whole_of(*matrix.named("c").values()), whole)


def test_kt_pfl_with_sampling_equals_the_rule_on_whole_matrices():
    """The server of 300 clients, 3 a round, holds 6 of them, and teaches everybody the same."""
    clients, generator = 300, np.random.default_rng(1)
    plan = RunPlan(num_clients=clients, num_classes=3, public_size=4)
    strategy = KTpFL(plan, KTpFLSettings(coefficient_learning_rate=0.5))
    strategy.state = strategy.begin({})
    strategy.members.clients = {n: ClientInfo(n, n, "mlp", 10) for n in range(clients)}
    whole = np.full((clients, clients), 1 / clients)
    for server_round, repliers in enumerate(([7, 20, 299], [20, 21, 22]), start=1):
        predictions = random_simplex(generator, 3, 4, 3).astype(np.float32)
        shares, block = np.full(3, 1 / clients), np.ix_(repliers, repliers)
        whole[block] = strategy.updated_block(whole[block], predictions, shares)
        replies = {
            n: reply_with({"predictions": own})
            for n, own in zip(repliers, predictions, strict=True)
        }
        strategy.state = strategy.aggregate(server_round, replies)
        np.testing.assert_array_equal(strategy.state.coefficients.whole(), whole)
        teachers = weighted_mean(normalized_rows(whole[:, repliers]), predictions)
        for n in (0, 7, 20, 150, 299):
            np.testing.assert_allclose(strategy.teacher_of(n), teachers[n], rtol=1e-6)
    assert strategy.state.coefficients.values.shape == (5, 5)
    assert strategy.state.teachers.shape == (6, 4, 3)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    settings = {
        "strategy": "kt-pfl", "models": "mlp", "num-clients": 6, "fraction-train": 0.34,
        "num-server-rounds": 2, "max-samples": 300, "kt-pfl.coefficient-learning-rate": 0.5,
    }  # fmt: skip
    return fedkd_flwr.run(settings, output_dir=tmp_path_factory.mktemp("runs") / "run")


def test_the_matrices_of_a_run_have_all_clients(sampled):
    coefficients = sampled.matrices["coefficients"]
    assert coefficients.shape == (2, 6, 6)
    np.testing.assert_allclose(coefficients.sum(axis=2), 1)
    trained = {*sampled.clients.dropna(subset=["train_loss"])["partition_id"]}
    others = sorted({*range(6)} - trained)
    assert others
    np.testing.assert_array_equal(coefficients[:, others], 1 / 6)
    np.testing.assert_array_equal(coefficients[:, :, others], 1 / 6)
    assert (coefficients != 1 / 6).any()
    stored = np.load(sampled.path / "matrices" / "coefficients.npy")
    assert stored.shape == (2, 2)
    assert sampled.summary["matrices"] == ["coefficients"]


def test_starts_that_do_not_fit_are_reported(sampled, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(sampled.path, run)
    with (run / "matrices" / f"coefficients{STARTS}.npy").open("wb") as file:
        for _ in range(2):
            np.save(file, np.full((4, 6), 7.0))
    with pytest.raises(DamagedRunError, match=r"coefficients-starts\.npy is damaged"):
        _ = load_run(run).matrices
