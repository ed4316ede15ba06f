"""Which `local` a method is compared with, and notes on missing evaluations."""

import json

import pytest
from helpers import change_json
from test_comparison import write_lines, write_run

from fedkd_flwr.analysis.comparison import compare


def validated(path, accuracy):
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    rows[-1]["validation_accuracy_mean"] = accuracy
    write_lines(path / "rounds.jsonl", rows)
    return path


@pytest.mark.parametrize("preferred", [0.01, 0.001])
def test_of_equally_similar_references_the_best_on_validation_data_counts(tmp_path, preferred):
    accuracies = {0.01: [0.8, 0.8], 0.001: [0.4, 0.4]}
    for rate, reached in accuracies.items():
        for seed in (0, 1):
            path = write_run(tmp_path, "local", seed, reached, **{"learning-rate": rate})
            validated(path, 0.9 if rate == preferred else 0.1)
    for seed in (0, 1):
        write_run(tmp_path, "kt-pfl", seed, [0.6, 0.6], **{"learning-rate": 0.05})
    compared = compare(tmp_path)
    gain = 100 * (0.6 - accuracies[preferred][0])
    assert compared.clients.query("method == 'kt-pfl'")["gain"].tolist() == pytest.approx(
        [gain / 100] * 4
    )
    (verdict,) = compared.verdicts
    assert f" from local (learning-rate={preferred}): {gain:+.1f} points" in verdict
    run = compared.groups["kt-pfl"][1]
    assert compared.references.of("kt-pfl", 1).config["learning-rate"] == preferred
    assert run.config["seed"] == compared.references.of("kt-pfl", 1).config["seed"] == 1


def test_shared_settings_take_precedence_over_validation_data(tmp_path):
    validated(write_run(tmp_path, "local", 0, [0.8], **{"learning-rate": 0.01}), 0.9)
    validated(write_run(tmp_path, "local", 0, [0.4], **{"learning-rate": 0.05}), 0.1)
    write_run(tmp_path, "kt-pfl", 0, [0.6], **{"learning-rate": 0.05})
    (verdict,) = compare(tmp_path).verdicts
    assert "from local (learning-rate=0.05): +20.0 points. Above it in 1 of 1 seed" in verdict


def test_local_with_another_order_of_batches_is_compared_like_a_method(tmp_path):
    for seed in (0, 1):
        validated(write_run(tmp_path, "local", seed, [0.5]), 0.1)
        validated(write_run(tmp_path, "local", seed, [0.6], **{"batch-order": 1}), 0.9)
    compared = compare(tmp_path)
    assert compared.references.labels == ["local (batch-order=0)"]
    assert compared.table["gain"]["local (batch-order=1)"] == pytest.approx(0.1)


def test_a_seed_without_the_best_reference_is_not_compared_with_another(tmp_path):
    validated(write_run(tmp_path, "local", 0, [0.8], **{"learning-rate": 0.01}), 0.9)
    for seed in (0, 1):
        path = write_run(tmp_path, "local", seed, [0.4], **{"learning-rate": 0.001})
        validated(path, 0.1)
        write_run(tmp_path, "kt-pfl", seed, [0.6], **{"learning-rate": 0.05})
    compared = compare(tmp_path)
    clients = compared.clients.query("method == 'kt-pfl'")
    assert clients["gain"].tolist() == pytest.approx([-0.2, float("nan")], nan_ok=True)
    assert clients["reference"].tolist() == ["local (learning-rate=0.01)", None]
    assert (
        "Without a run of local (learning-rate=0.01) of the same seed: kt-pfl seed 1."
        in compared.notes
    )


def test_a_reference_without_a_common_seed_does_not_count(tmp_path):
    validated(write_run(tmp_path, "local", 0, [0.8], **{"learning-rate": 0.01}), 0.9)
    validated(write_run(tmp_path, "local", 1, [0.4], **{"learning-rate": 0.001}), 0.1)
    write_run(tmp_path, "kt-pfl", 1, [0.6], **{"learning-rate": 0.01})
    (verdict,) = compare(tmp_path).verdicts
    assert "from local (learning-rate=0.001): +20.0 points" in verdict


def test_a_last_round_without_an_evaluation_is_reported(tmp_path):
    write_run(tmp_path, "local", 0, [0.5])
    path = write_run(tmp_path, "kt-pfl", 0, [0.6])
    early = {"round": 1.0, "accuracy_mean": 0.1, "accuracy_std": 0.0, "accuracy_min": 0.1}
    change_json(path / "summary.json", last_round=early)
    assert compare(tmp_path).notes == [
        "kt-pfl seed 0 lacks the evaluation after its last round, 2; its results are those of "
        "round 1."
    ]
    change_json(path / "summary.json", last_round=None, validation_round=None)
    assert "kt-pfl seed 0 was never evaluated." in compare(tmp_path).notes


def test_new_clients_without_an_evaluation_are_said(tmp_path):
    path = write_run(tmp_path, "local", 0, [0.5, 0.7], **{"num-clients": 4, "new-clients": 0.5})
    write_lines(path / "new_clients.jsonl", [{"round": 2, "partition_id": 3, "accuracy": 0.5}])
    lacking = "local seed 0 has results of 1 of 2 new clients: the others lack an evaluation."
    assert compare(tmp_path).notes == [lacking]
