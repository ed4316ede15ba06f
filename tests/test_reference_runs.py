"""Which `local` a method is compared with, and notes on missing evaluations."""

import pytest
from helpers import change_json, read_lines, write_lines
from test_comparison import write_run

from fedkd_flwr.analysis.comparison import compare


def validated(path, accuracy):
    rows = read_lines(path / "rounds.jsonl")
    rows[-1]["validation_accuracy_mean"] = accuracy
    write_lines(path / "rounds.jsonl", rows)
    return path


@pytest.mark.parametrize("preferred", [0.01, 0.05])
def test_of_several_local_the_best_on_validation_data_is_the_reference(tmp_path, preferred):
    accuracies = {0.01: [0.8, 0.8], 0.05: [0.4, 0.4]}
    for rate, reached in accuracies.items():
        for seed in (0, 1):
            path = write_run(tmp_path, "local", seed, reached, **{"learning-rate": rate})
            validated(path, 0.9 if rate == preferred else 0.1)
    for seed in (0, 1):
        write_run(tmp_path, "kt-pfl", seed, [0.6, 0.6], **{"learning-rate": 0.05})
    compared = compare(tmp_path)
    gain = 0.6 - accuracies[preferred][0]
    assert compared.clients.query("method == 'kt-pfl'")["gain"].tolist() == pytest.approx(
        [gain] * 4
    )
    (verdict,) = compared.verdicts
    assert f" from local (learning-rate={preferred}): {100 * gain:+.1f} points" in verdict
    assert compared.references.choices[0] in compared.remarks
    assert compared.references.choices == [
        "Of the settings of local, the best on validation data is the reference: "
        f"local (learning-rate={preferred})."
    ]
    run = compared.groups["kt-pfl"][1]
    assert run.config["seed"] == compared.references.of("kt-pfl", 1).config["seed"] == 1


def test_conditions_take_precedence_over_validation_data(tmp_path):
    """Training without noise is no reference for training with noise."""
    noise = {"dp-sgd-noise-multiplier": 1.0}
    validated(write_run(tmp_path, "local", 0, [0.8]), 0.9)
    validated(write_run(tmp_path, "local", 0, [0.4], **noise), 0.1)
    write_run(tmp_path, "fedavg", 0, [0.6], **noise, **{"learning-rate": 0.05})
    (verdict,) = compare(tmp_path).verdicts
    assert "local (dp-sgd-noise-multiplier=1.0): +20.0 points. Above it in 1 of 1 seed" in verdict


def test_without_validation_data_local_takes_at_least_as_many_steps(tmp_path):
    for epochs, accuracy in ((1, 0.3), (2, 0.5), (4, 0.7)):
        path = write_run(tmp_path, "local", 0, [accuracy], **{"local-epochs": epochs})
        change_json(path / "summary.json", gradient_steps=100 * epochs)
    for method, steps in (("fedavg", 100), ("kt-pfl", 150), ("ditto", 500)):
        path = write_run(tmp_path, method, 0, [0.6], **{"local-epochs": 1})
        change_json(path / "summary.json", gradient_steps=steps)
    compared = compare(tmp_path)
    gains = compared.table["gain"].dropna().to_dict()
    assert gains == pytest.approx({"fedavg": 0.3, "kt-pfl": 0.1, "ditto": -0.1})
    assert compared.references.choices == [
        "Of the settings of local, without validation data, one with at least as many gradient "
        "steps is the reference: local (local-epochs=1), local (local-epochs=2), local "
        "(local-epochs=4)."
    ]


def test_local_with_another_order_of_batches_is_compared_like_a_method(tmp_path):
    for seed in (0, 1):
        validated(write_run(tmp_path, "local", seed, [0.5]), 0.1)
        validated(write_run(tmp_path, "local", seed, [0.6], **{"batch-order": 1}), 0.9)
    compared = compare(tmp_path)
    assert compared.references.labels == ["local (batch-order=0)"]
    assert compared.table["gain"]["local (batch-order=1)"] == pytest.approx(0.1)


def test_a_reference_with_all_seeds_takes_precedence_and_missing_ones_are_noted(tmp_path):
    validated(write_run(tmp_path, "local", 0, [0.8], **{"learning-rate": 0.01}), 0.9)
    for seed in (0, 1, 2):
        write_run(tmp_path, "kt-pfl", seed, [0.6], **{"learning-rate": 0.05})
        if seed < 2:
            path = write_run(tmp_path, "local", seed, [0.4], **{"learning-rate": 0.001})
            validated(path, 0.1)
    compared = compare(tmp_path)
    clients = compared.clients.query("method == 'kt-pfl'")
    assert clients["gain"].tolist() == pytest.approx([0.2, 0.2, float("nan")], nan_ok=True)
    assert clients["reference"].tolist() == ["local (learning-rate=0.001)"] * 2 + [None]
    assert (
        "Without a run of local (learning-rate=0.001) of the same seed: kt-pfl seed 2."
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
