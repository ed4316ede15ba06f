"""Evaluations of a sample of clients: who is drawn, and the standard error of the mean."""

import itertools

import numpy as np
import pytest

import fedkd_flwr
from strategies.core.evaluations import standard_error
from strategies.core.plan import RunPlan

SAMPLED = {
    "num-clients": 6, "num-server-rounds": 3, "models": "mlp", "evaluate-clients": 2,
    "fraction-train": 0.5, "max-samples": 300,
}  # fmt: skip


def evaluated(run):
    rows = run.clients.dropna(subset=["accuracy"])
    return {n: sorted(part["partition_id"]) for n, part in rows.groupby("round")}


def test_the_expected_square_of_the_standard_error_is_the_variance_of_the_mean():
    """Over all samples of 2 of 5 clients, each as likely as the others."""
    accuracies = np.array([0.1, 0.4, 0.5, 0.8, 0.9])
    samples = list(itertools.combinations(accuracies, 2))
    errors = [
        standard_error([{"accuracy": a} for a in sample], 5)["accuracy_standard_error"]
        for sample in samples
    ]
    spread = np.mean([(np.mean(sample) - accuracies.mean()) ** 2 for sample in samples])
    assert np.mean(np.square(errors)) == pytest.approx(spread)


def test_there_is_none_without_a_sample_and_zero_if_all_are_drawn():
    rows = [{"accuracy": a} for a in (0.2, 0.6)]
    assert standard_error(rows, 0) == {}
    assert standard_error(rows[:1], 9) == {}
    assert standard_error(rows, 2) == {"accuracy_standard_error": 0}


@pytest.mark.parametrize("strategy", ["local", "fedavg"])
def test_each_evaluation_draws_by_seed_and_round(small, tmp_path, strategy):
    run = fedkd_flwr.run({**small, **SAMPLED, "strategy": strategy}, output_dir=tmp_path / "run")
    plan = RunPlan(num_clients=6, num_classes=10, num_server_rounds=3, evaluate_clients=2)
    expected = {t: plan.evaluated(t, range(6)) for t in (1, 2, 3)}
    assert evaluated(run) == expected
    assert len(set(map(tuple, expected.values()))) > 1
    last = run.clients[run.clients["round"] == 3].dropna(subset=["accuracy"])["accuracy"]
    error = last.std() / np.sqrt(2) * np.sqrt(1 - 2 / 6)
    assert run.round_rows[-1]["accuracy_standard_error"] == pytest.approx(error)
    assert run.summary["last_round"]["accuracy_standard_error"] == pytest.approx(error)
    assert run.round_rows[-1]["accuracy_mean"] == pytest.approx(last.mean())


def test_the_accuracies_are_those_of_a_run_that_evaluates_all(small, tmp_path):
    settings = {**small, **SAMPLED, "strategy": "fedavg"}
    some = fedkd_flwr.run(settings, output_dir=tmp_path / "some")
    every = fedkd_flwr.run({**settings, "evaluate-clients": 0}, output_dir=tmp_path / "every")
    assert "accuracy_standard_error" not in every.rounds
    both = some.clients.merge(every.clients, on=["round", "partition_id"]).dropna(
        subset=["accuracy_x"]
    )
    assert len(both) == 6
    np.testing.assert_array_equal(both["accuracy_x"], both["accuracy_y"])
