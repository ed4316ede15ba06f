"""Comparing runs, on run directories written by hand so that every number can be worked out."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import change_json, read_lines, write_lines

from fedkd_flwr.analysis.columns import COLUMNS
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.settings import IncomparableRunsError, defining_settings
from fedkd_flwr.config import ConfigError, read_config
from fedkd_flwr.config.toml_files import read_toml
from fedkd_flwr.data.partitioners import partition_indices
from fedkd_flwr.data.splits import split_client
from fedkd_flwr.files import append_array
from fedkd_flwr.runs import DamagedRunError, RunDirectoryError, load_run

COUNTS = {
    "numbers_up": 100, "numbers_down": 60, "numbers_down_broadcast": 60, "bytes_up": 1000,
    "bytes_down": 500, "failures": 0,
}  # fmt: skip


def write_run(
    folder, strategy, seed, accuracies, finished=True, chosen=None, foreign=None, **config
):
    """Write a run of two rounds; `foreign` are entries of its config that are unknown."""
    config = {"num-clients": len(accuracies), "num-server-rounds": 2, "models": "mlp", **config}
    flat = read_config({"strategy": strategy, "seed": seed, **config}).flat()
    flat |= foreign or {}
    path = folder / f"{strategy}-{seed}-{len(list(folder.glob('*')))}"
    path.mkdir(parents=True)
    started = f"2026-01-01T00:{len(list(folder.glob('*'))):02d}:00+00:00"
    (path / "config.json").write_text(json.dumps({"config": flat, "started": started}))
    rounds, clients = [], []
    for server_round, values in ((1, [0.1] * len(accuracies)), (2, accuracies)):
        rounds.append({"round": server_round, "accuracy_mean": np.mean(values), **COUNTS})
        clients += [
            {"round": server_round, "partition_id": n, "accuracy": value}
            for n, value in enumerate(values)
        ]
    write_lines(path / "rounds.jsonl", rounds)
    write_lines(path / "clients.jsonl", clients)
    summary = {
        "strategy": strategy,
        "rounds": 2,
        "last_round": {
            "round": 2.0, "accuracy_mean": float(np.mean(accuracies)),
            "accuracy_std": float(np.std(accuracies)), "accuracy_min": min(accuracies),
        },
        "validation_round": chosen and {"round": 1.0, "accuracy_mean": chosen},
        **{name: 2 * value for name, value in COUNTS.items()},
        "seconds": 4.0 + seed,
    }  # fmt: skip
    if finished:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


@pytest.fixture
def two_methods(tmp_path):
    """KT-pFL has 0.7 and 0.9, `local` 0.5 and 0.6, over two seeds and four clients."""
    write_run(tmp_path, "kt-pfl", 0, [0.6, 0.6, 0.8, 0.8], chosen=0.65)
    write_run(tmp_path, "kt-pfl", 1, [1.0, 0.9, 0.9, 0.8], chosen=0.85)
    write_run(tmp_path, "local", 0, [0.6, 0.5, 0.5, 0.4])
    write_run(tmp_path, "local", 1, [0.3, 0.9, 0.9, 0.3])
    return tmp_path


def test_the_table_holds_hand_computed_numbers(two_methods):
    comparison = compare(two_methods)
    assert list(comparison.table.index) == ["kt-pfl", "local"]
    row = comparison.table.loc["kt-pfl"]
    assert row["seeds"] == 2
    assert row["accuracy"] == pytest.approx(0.8)
    # (0.1² + 0.1²) / (2 - 1), and its root.
    assert row["accuracy_std"] == pytest.approx(np.sqrt(0.02))
    assert row["accuracy_chosen"] == pytest.approx(0.75)
    assert row["accuracy_chosen_std"] == pytest.approx(np.sqrt(0.02))
    # Over clients 0.1 with seed 0, and the root of (0.1² + 0.1²) / 4 with seed 1.
    assert row["clients_std"] == pytest.approx((0.1 + np.sqrt(0.005)) / 2)
    assert row["clients_worst"] == pytest.approx(0.7)
    # With seed 0 three of four are better and one is level; with seed 1 two of four.
    assert row["beats_local"] == pytest.approx((3 / 4 + 2 / 4) / 2)
    # Nobody loses; a tenth of the way over four clients is 0.3 from the first to the second.
    assert (row["harmed"], row["worst_loss"]) == (0, 0)
    assert row["clients_decile"] == pytest.approx((0.6 + 0.83) / 2)
    assert row["clients_worst_tenth"] == pytest.approx((0.6 + 0.8) / 2)
    assert row["jain"] == pytest.approx((2.8**2 / (4 * 2.0) + 3.6**2 / (4 * 3.26)) / 2)
    assert (row["numbers"], row["bytes"]) == (320, 3000)
    local = comparison.table.loc["local"]
    assert local["accuracy"] == pytest.approx((0.5 + 0.6) / 2)
    assert np.isnan(local["beats_local"])
    assert np.isnan(local["accuracy_chosen"])
    assert comparison.notes == []
    # (0.2 + 0.3) / 2, as each client is compared with itself.
    assert comparison.verdicts == [
        "kt-pfl is not shown to differ from local: +25.0 points. Above it in 2 of 2 seeds "
        "(by chance 1 in 4). A verdict needs at least 3 seeds."
    ]
    assert (row["gain"], row["verdict"]) == (pytest.approx(0.25), "not shown")


def write_gains(folder, strategy, gains):
    """Write one run a seed whose clients gain this much over those of `local`, 0.5 and 0.5."""
    for seed, gain in enumerate(gains):
        write_run(folder, strategy, seed, [0.5 + gain - 0.01, 0.5 + gain + 0.01])


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        # t = 0.1 / (0.01 / √3) = 17.3; t(0.975, 2) = 4.303.
        (
            [0.09, 0.10, 0.11],
            "is better than local: +10.0 points (95% interval +7.5 to +12.5, p = 0.0033). "
            "Above it in 3 of 3 seeds (by chance 1 in 8).",
        ),
        (
            [-0.09, -0.10, -0.11],
            "is worse than local: -10.0 points (95% interval -12.5 to -7.5, p = 0.0033). "
            "Below it in 3 of 3 seeds (by chance 1 in 8).",
        ),
        # Every seed is above, which would have been a win: t = 2 / (√3 / √3) = 2.
        (
            [0.01, 0.01, 0.04],
            "is not shown to differ from local: +2.0 points (95% interval -2.3 to +6.3, "
            "p = 0.18). Above it in 3 of 3 seeds (by chance 1 in 8). The smallest gain that "
            "these runs could show is 5.7 points.",
        ),
        ([0.1], "is not shown to differ from local: +10.0 points. Above it in 1 of 1 seed "
         "(by chance 1 in 2). A verdict needs at least 3 seeds."),
        ([-0.1, 0.1], "is not shown to differ from local: +0.0 points. Above it in 1 of 2 seeds. "
         "A verdict needs at least 3 seeds."),
    ],
)  # fmt: skip
def test_verdicts_are_tests_over_seeds(tmp_path, gains, verdict):
    write_gains(tmp_path, "kt-pfl", gains)
    write_gains(tmp_path, "local", [0] * len(gains))
    comparison = compare(tmp_path)
    assert comparison.verdicts == [f"kt-pfl {verdict}"]
    assert f"- kt-pfl {verdict}\n" in comparison.to_markdown()


def test_verdicts_follow_the_table_and_holm_counts_the_methods_that_are_tested(tmp_path):
    write_gains(tmp_path, "kt-pfl", [0.09, 0.10, 0.11])
    write_gains(tmp_path, "fedmd", [0.29, 0.30, 0.31])
    write_gains(tmp_path, "fedavg", [0.2])
    write_gains(tmp_path, "local", [0, 0, 0])
    comparison = compare(tmp_path)
    assert [sentence.split()[0] for sentence in comparison.verdicts] == [
        "fedmd", "fedavg", "kt-pfl",
    ]  # fmt: skip
    # The larger of two p values stays, the smaller doubles; one seed is not tested.
    effects = comparison.effects
    assert effects["kt-pfl"].p_holm == effects["kt-pfl"].p_value
    assert effects["fedmd"].p_holm == pytest.approx(2 * effects["fedmd"].p_value)
    assert comparison.table["verdict"].dropna().to_dict() == {
        "fedmd": "better", "fedavg": "not shown", "kt-pfl": "better",
    }  # fmt: skip
    assert comparison.notes[0].startswith("Verdicts are paired t tests over seeds at level 5%")
    assert "over 2 methods" in comparison.notes[0]


def test_results_on_validation_data_are_for_a_choice(tmp_path):
    for strategy in ("local", "kt-pfl"):
        split = {"evaluated-split": "validation", "client-split": "60/20/20"}
        write_run(tmp_path, strategy, 0, [0.6, 0.5], **split)
    assert any("are those on validation data" in note for note in compare(tmp_path).notes)


def test_another_reference_pairs_the_seeds_and_names_itself(two_methods):
    write_run(two_methods, "fedavg", 0, [0.6, 0.6, 0.6, 0.6])
    comparison = compare(two_methods, against="fedavg")
    # 0.7 - 0.6 with the seed that both have, and 0.5 - 0.6.
    assert [sentence.partition(". ")[0] for sentence in comparison.verdicts] == [
        "kt-pfl is not shown to differ from fedavg: +10.0 points",
        "local is not shown to differ from fedavg: -10.0 points",
    ]
    assert comparison.references.of("local", 0).config["strategy"] == "fedavg"
    assert "over fedavg, points (95%)" in comparison.to_markdown()
    assert COLUMNS["trained_accuracy"].heading_over("fedavg") == "after local training"
    assert np.isnan(comparison.table.loc["fedavg", "gain"])
    with pytest.raises(ConfigError, match=r"no finished run of ditto .* fedavg, kt-pfl, local\."):
        compare(two_methods, against="ditto")


def test_a_setting_of_a_method_can_be_the_reference(tmp_path):
    for rho, accuracy in ((0.6, 0.5), (0.9, 0.8)):
        write_run(tmp_path, "kt-pfl", 0, [accuracy] * 2, **{"kt-pfl.rho": rho})
    effects = compare(tmp_path, against="kt-pfl (rho=0.6)").effects
    assert {label: effect.gain for label, effect in effects.items()} == {
        "kt-pfl (rho=0.9)": pytest.approx(0.3)
    }


def test_pairs_of_methods_are_compared_in_both_directions(tmp_path):
    write_gains(tmp_path, "kt-pfl", [0.09, 0.10, 0.11])
    write_gains(tmp_path, "fedmd", [0.011, 0.02, 0.029])
    write_gains(tmp_path, "local", [0, 0, 0])
    write_gains(tmp_path, "fedavg", [])
    pairs = compare(tmp_path).pairs
    assert len(pairs) == 6
    forth, back = pairs["kt-pfl", "fedmd"], pairs["fedmd", "kt-pfl"]
    assert (forth.gain, back.gain) == (pytest.approx(0.08), pytest.approx(-0.08))
    assert (str(forth.outcome), str(back.outcome)) == ("better", "worse")
    assert (back.low, back.high) == (-forth.high, -forth.low)
    # Three pairs, each tested once.
    assert forth.family == 3


def test_clients_that_only_one_method_has_are_left_out_of_a_pair(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.7, 0.9], **{"num-clients": 3})
    write_run(tmp_path, "fedmd", 0, [0.4, 0.6, math.nan], **{"num-clients": 3})
    pairs = compare(tmp_path).pairs
    assert pairs["kt-pfl", "fedmd"].gain == pytest.approx(0.1)


def test_clients_below_local_are_counted_and_the_worst_loss_given(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.9, 0.5, 0.3, 0.6])
    write_run(tmp_path, "local", 0, [0.5, 0.6, 0.6, 0.6])
    row = compare(tmp_path).table.loc["kt-pfl"]
    assert row["harmed"] == 2 / 4
    assert row["worst_loss"] == pytest.approx(0.3)


def test_the_worst_tenth_of_many_clients_is_more_than_one(tmp_path):
    write_run(tmp_path, "local", 0, [0.1, 0.3] + [0.8] * 18)
    assert compare(tmp_path).table.loc["local", "clients_worst_tenth"] == pytest.approx(0.2)


def test_paths_runs_and_folders_are_all_taken_once(two_methods):
    paths = sorted(two_methods.iterdir())
    mixed = [str(paths[0]), load_run(paths[1]), two_methods]
    pd.testing.assert_frame_equal(compare(mixed).table, compare(two_methods).table)


def test_unequal_seeds_are_compared_with_a_note(two_methods):
    write_run(two_methods, "kt-pfl", 2, [0.9, 0.9, 0.9, 0.9])
    comparison = compare(two_methods)
    row = comparison.table.loc["kt-pfl"]
    assert row["seeds"] == 3
    assert row["accuracy"] == pytest.approx((0.7 + 0.9 + 0.9) / 3)
    assert row["beats_local"] == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert comparison.notes == [
        "The methods have different seeds, and each mean is over a method's own: "
        "kt-pfl 0, 1, 2; local 0, 1.",
        "Without a run of local of the same seed: kt-pfl seed 2.",
    ]


def test_without_local_the_share_is_empty_and_a_note_says_so(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.7])
    comparison = compare(tmp_path)
    row = comparison.table.loc["kt-pfl"]
    assert np.isnan(row["beats_local"])
    assert np.isnan(row["accuracy_std"])
    none = "There is no run of local, so there are no verdicts; run it with seed 0."
    assert comparison.notes[0] == none
    # A tenth of the way from 0.5 to 0.7, and (0.5 + 0.7)² / (2 (0.5² + 0.7²)).
    row = "| kt-pfl | 1 | 60.0% | 10.0 | 50.0% | 52.0% | 50.0% | 0.9730 | - | - | - | - |"
    assert row in comparison.to_markdown()


def test_an_unfinished_run_is_left_out_with_a_note(two_methods):
    before = compare(two_methods).table
    path = write_run(two_methods, "kt-pfl", 2, [0.0] * 4, finished=False)
    comparison = compare(two_methods)
    pd.testing.assert_frame_equal(comparison.table, before)
    assert comparison.notes == [f"{path.name} is unfinished (2 of 2 rounds) and left out."]


def test_a_path_without_runs_is_said_to_be_what_it_is(tmp_path):
    with pytest.raises(RunDirectoryError, match="missing holds no run: there is no such folder"):
        compare(tmp_path / "missing")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RunDirectoryError, match=r"notes\.txt holds no run: it is a file"):
        compare(tmp_path / "notes.txt")
    write_run(tmp_path / "sweep", "local", 0, [0.5])
    with pytest.raises(RunDirectoryError, match=f"but folders of runs.*{tmp_path / 'sweep'}"):
        compare(tmp_path)


def test_nothing_finished_or_nothing_there_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="no runs"):
        compare([])
    write_run(tmp_path, "kt-pfl", 0, [0.5], finished=False)
    with pytest.raises(IncomparableRunsError, match="None of the 1 runs is finished"):
        compare(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition": "iid"}, ["partition (iid, k-classes-grouped)"]),
        ({"partition": "dirichlet", "alpha": 0.1}, ["partition (", "alpha (0.1, 0.5)"]),
        ({"held-out-size": 300}, ["held-out-size (200, 300)"]),
        ({"public-dataset": "mnist"}, ["public-dataset (held-out, mnist)", "held-out-size ("]),
        ({"client-split": "60/20/20"}, ["client-split (12/0/88, 60/20/20)"]),
        ({"num-clients": 3}, ["num-clients (2, 3)"]),
        ({"new-clients": 0.5}, ["new-clients (0.0, 0.5)"]),
    ],
)
def test_different_data_is_refused_by_the_names_of_the_keys(tmp_path, changes, words):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.7])
    write_run(tmp_path, "local", 0, [0.5, 0.7], **changes)
    with pytest.raises(IncomparableRunsError) as refusal:
        compare(tmp_path)
    assert str(refusal.value).count("\n") == 0
    for word in words:
        assert word in str(refusal.value)
    assert "models" not in str(refusal.value)


def test_a_run_without_public_set_has_the_splits_of_one_with_another_data_set(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.7], **{"public-dataset": "mnist"})
    write_run(tmp_path, "local", 0, [0.5, 0.6], **{"public-dataset": "none"})
    assert compare(tmp_path).table.loc["kt-pfl", "beats_local"] == 0.5
    write_run(tmp_path, "fedmd", 0, [0.5, 0.7], **{"public-dataset": "emnist"})
    with pytest.raises(IncomparableRunsError, match=r"public-dataset \(emnist, mnist\)"):
        compare(tmp_path)


def test_settings_that_differ_make_groups_of_their_own(tmp_path):
    for rho, accuracy in ((0.6, 0.5), (0.9, 0.8)):
        for seed in (0, 1):
            write_run(tmp_path, "kt-pfl", seed, [accuracy] * 2, **{"kt-pfl.rho": rho})
    # A setting of another method and the place of a run are nobody's concern.
    write_run(tmp_path, "local", 0, [0.6] * 2, **{"kt-pfl.rho": 0.6, "device": "cpu"})
    write_run(tmp_path, "local", 1, [0.6] * 2, **{"kt-pfl.rho": 0.9, "torch-threads": 2})
    table = compare(tmp_path).table
    # Without validation data the better of two settings is not put first for its test accuracy.
    assert list(table.index) == ["local", "kt-pfl (rho=0.6)", "kt-pfl (rho=0.9)"]
    assert table["beats_local"].fillna(-1).tolist() == [-1, 0, 1]
    assert (table["seeds"] == 2).all()


def test_a_run_is_compared_with_the_local_run_of_most_similar_settings(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.5], models="lenet")
    write_run(tmp_path, "local", 0, [0.9, 0.9], models="mlp")
    write_run(tmp_path, "local", 0, [0.4, 0.4], models="lenet")
    assert compare(tmp_path).table.loc["kt-pfl", "beats_local"] == 1


def test_methods_that_train_longer_than_their_reference_are_noted(tmp_path):
    def run(strategy, steps, **config):
        split = {"client-split": "60/20/20"}
        path = write_run(tmp_path, strategy, 0, [0.5, 0.5], **split, **config)
        change_json(path / "summary.json", gradient_steps=steps)

    run("local", 100)
    run("fedavg", 140)
    assert not [note for note in compare(tmp_path).notes if "gradient steps" in note]
    run("kt-pfl", 220)
    # A safeguard's private model takes as many steps as `local`.
    run("ditto", 300, safeguard="blend")
    (note,) = [note for note in compare(tmp_path).notes if "gradient steps" in note]
    assert note.startswith("Clients take more gradient steps than under local: ")
    assert "kt-pfl 2.2 times" in note and "ditto 2.0 times" in note and "fedavg" not in note


def test_settings_that_methods_do_not_share_are_noted(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.5], models="lenet,mlp")
    write_run(tmp_path, "fedavg", 0, [0.5, 0.5], models="lenet")
    write_run(tmp_path, "local", 0, [0.5, 0.5], models="lenet,mlp")
    notes = compare(tmp_path).notes
    assert notes == ["The methods do not share models: lenet (fedavg); lenet,mlp (kt-pfl, local)."]


@pytest.mark.parametrize("accuracy", [1.7, 87.5, -0.1])
def test_accuracies_that_are_no_parts_of_one_are_refused(accuracy, tmp_path):
    path = write_run(tmp_path, "local", 0, [0.5, accuracy])
    refused = rf"clients.jsonl is damaged \(accuracy = {accuracy:g} in round 2; .* 0.875 for 87.5%"
    with pytest.raises(DamagedRunError, match=refused):
        compare(path)


def test_of_two_equal_runs_the_later_counts(tmp_path):
    first = write_run(tmp_path, "local", 0, [0.1, 0.1])
    write_run(tmp_path, "local", 0, [0.9, 0.9])
    comparison = compare(tmp_path)
    assert comparison.table.loc["local", "accuracy"] == 0.9
    assert comparison.notes == [
        f"{first.name} (10.0%) is left out: local-0-1 (90.0%) is a later run with the same "
        "settings and seed. Remove the one that is not to count."
    ]


def test_accuracy_and_gain_are_of_the_same_file(two_methods):
    for path in two_methods.iterdir():
        other = {f"accuracy_{name}": 0.99 for name in ("mean", "std", "min")}
        change_json(path / "summary.json", last_round=other)
    row = compare(two_methods).table.loc["kt-pfl"]
    assert (row["accuracy"], row["gain"]) == (pytest.approx(0.8), pytest.approx(0.25))
    assert row["clients_worst"] == pytest.approx(0.7)


def test_clients_without_an_evaluation_are_not_compared(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5, 0.7, 0.7])
    local = write_run(tmp_path, "local", 0, [0.6, 0.6, 0.6])
    rows = read_lines(local / "clients.jsonl")
    del rows[-1]["accuracy"]
    write_lines(local / "clients.jsonl", rows)
    comparison = compare(tmp_path)
    assert comparison.table.loc["kt-pfl", "beats_local"] == 0.5
    assert comparison.notes == [
        "local seed 0 has results of 2 of 3 clients: the others lack an evaluation.",
        "kt-pfl seed 0 is compared with local on 2 of 3 clients.",
    ]


def test_settings_of_older_runs_have_their_defaults():
    settings = defining_settings({"strategy": "kt-pfl", "seed": 3})
    assert settings["seed"] == 3
    assert settings["kt-pfl.rho"] == 0.6
    assert not {"output-dir", "persfl.teacher"} & settings.keys()
    # One method reads the table of another.
    assert "feddf.distillation-steps" in defining_settings({"strategy": "pfeddf"})


def test_unknown_settings_of_other_versions_distinguish_runs(tmp_path):
    for mu, accuracy in ((0.01, 0.9), (0.1, 0.8)):
        foreign = {"strategy": "a-later-method", "later.mu": mu}
        write_run(tmp_path, "fedavg", 0, [accuracy] * 2, models="mlp", foreign=foreign)
    for schedule, accuracy in (("cosine", 0.7), ("step", 0.6)):
        write_run(tmp_path, "kt-pfl", 0, [accuracy] * 2, foreign={"schedule": schedule})
    write_run(tmp_path, "local", 0, [0.5] * 2)
    comparison = compare(tmp_path)
    assert list(comparison.table.index) == [
        "a-later-method (mu=0.01)",
        "a-later-method (mu=0.1)",
        "kt-pfl (schedule=cosine)",
        "kt-pfl (schedule=step)",
        "local",
    ]
    assert not any("repeats" in note for note in comparison.notes)


def test_a_table_that_only_a_later_version_writes_divides_nothing(tmp_path):
    write_run(tmp_path, "kt-pfl", 0, [0.5] * 2)
    write_run(tmp_path, "kt-pfl", 1, [0.7] * 2, foreign={"later.mu": 0.1})
    assert compare(tmp_path).table["seeds"].to_dict() == {"kt-pfl": 2}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("config.json", lambda path: path.write_text('["kt-pfl"]')),
        ("summary.json", lambda path: path.write_text("{}")),
        ("rounds.jsonl", lambda path: path.write_text("")),
        ("matrices/c.npy", lambda path: append_array(path, np.array(["text"]))),
    ],
)
def test_a_damaged_run_does_not_keep_others_from_being_compared(two_methods, file, damage):
    before = compare(two_methods).table
    path = write_run(two_methods, "fedmd", 0, [0.5] * 4)
    damage(path / file)
    comparison = compare(two_methods)
    pd.testing.assert_frame_equal(comparison.table, before)
    (note,) = comparison.notes
    assert note.startswith(f"{path.name} is left out: ") and str(path) in note
    assert "\n" not in note
    # Whoever names it wants it, and is told in one sentence.
    with pytest.raises(RunDirectoryError, match=path.name) as refusal:
        compare([two_methods, path])
    assert "\n" not in str(refusal.value)


def test_markdown_parses_back(two_methods):
    text = compare(two_methods).to_markdown()
    lines = text.partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(row) for row in cells}) == 1
    assert all(cell.startswith("---") for cell in cells[1])
    row = dict(zip(cells[0], cells[2], strict=True))
    assert row["method"] == "kt-pfl"
    assert row["accuracy, last round"] == "80.0 ± 14.1%"
    assert (row["beat local"], row["bytes"], row["numbers"]) == ("62%", "3 kB", "320")


def test_latex_parses_back(two_methods):
    write_run(two_methods, "fedmd", 0, [0.1] * 4, finished=False)
    latex = compare(two_methods).to_latex()
    assert latex.startswith("% kt-pfl is not shown to differ from local")
    assert "% fedmd-0-4 is unfinished" in latex
    body = latex.split("\\midrule\n")[1].split("\\bottomrule")[0]
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines()]
    assert [row[0] for row in rows] == ["kt-pfl", "local"]
    assert rows[0][2] == r"80.0 $\pm$ 14.1\%"
    assert rows[0][11] == r"62\%"
    columns = latex.split("\\begin{tabular}{")[1].split("}")[0]
    assert len(columns) == len(rows[0]) == 17


def test_csv_parses_back_with_all_digits(two_methods):
    comparison = compare(two_methods)
    back = pd.read_csv(io.StringIO(comparison.to_csv()), index_col="method")
    pd.testing.assert_frame_equal(back, comparison.table, rtol=1e-15)


# ---- Presets for comparisons measure each client on at least 1,000 test images -------


COMPARE = Path(__file__).parent.parent / "conf" / "compare"


@pytest.mark.parametrize("partition", ["k-classes-grouped", "dirichlet"])
@pytest.mark.parametrize("preset", ["fashion-mnist-same", "cifar10-mixed"])
@pytest.mark.parametrize("seed", [0, 11])
def test_test_splits_are_large_and_training_splits_small(preset, partition, seed):
    settings = {**read_toml(COMPARE / f"{preset}.toml"), "partition": partition, "seed": seed}
    plan = read_config(settings).run.data_plan
    # Ten classes of equal size, as in both data sets.
    private = plan.settings.max_samples - plan.settings.num_held_out
    labels = np.arange(private) % 10
    train, test = [], []
    for n, own in enumerate(partition_indices(labels, plan.settings, plan.num_clients, seed)):
        parts = split_client(labels[own], plan.settings.client_split, seed, n)
        train.append(len(parts[0]))
        test.append(len(parts[2]))
    assert min(test) >= 1000
    assert 55 <= np.mean(train) <= 65


def test_presets_of_one_data_set_have_the_same_splits():
    keys = ("max-samples", "alpha", "minimum-size", "client-split", "held-out-size", "num-clients")
    for dataset in ("fashion-mnist", "cifar10"):
        same, mixed = (read_toml(COMPARE / f"{dataset}-{kind}.toml") for kind in ("same", "mixed"))
        assert [same[key] for key in keys] == [mixed[key] for key in keys]


# ---- Runs that allow no verdict, or none for some clients ----------------------------


def write(folder, **methods):
    """Write runs of methods: their accuracies of two clients, by seed."""
    for method, by_seed in methods.items():
        for seed, accuracies in by_seed.items():
            write_run(folder, method.replace("_", "-"), seed, accuracies)
    return folder


def fail(path, partition_id, rounds):
    """Let a client give no valid reply in some rounds of a run; it was asked in both."""
    rows = read_lines(path / "clients.jsonl")
    for row in rows:
        row["numbers_down"] = 10
        if row["partition_id"] == partition_id and row["round"] in rounds:
            row["failure"] = "it failed: KeyError: 'first'"
    write_lines(path / "clients.jsonl", rows)


def gaining(folder, **config):
    """Write three seeds of `local` and of a method that is clearly better; return its paths."""
    write(folder, local={seed: [0.5, 0.5] for seed in range(3)})
    return [
        write_run(folder, "fedavg", seed, [0.6 + seed / 100, 0.7], **config) for seed in range(3)
    ]


def test_runs_with_other_rounds_or_data_have_no_gain_and_no_verdict(tmp_path):
    """A split that only one of them records is unknown, and others are the same."""
    gaining(tmp_path / "alike")
    assert compare(tmp_path / "alike").table.loc["fedavg", "verdict"] == "better"
    paths = gaining(tmp_path / "other", **{"num-server-rounds": 40})
    for path in sorted(tmp_path.glob("other/*")):
        change_json(path / "config.json", data={"split": "a" if path != paths[1] else "b"})
    change_json(paths[2] / "config.json", data={"dataset": "c"})
    compared = compare(tmp_path / "other")
    assert "gain" not in compared.table or np.isnan(compared.table.loc["fedavg", "gain"])
    assert compared.effects == compared.pairs == {}
    assert compared.verdicts == [
        "fedavg has no verdict against local: num-server-rounds is 40 in fedavg and 2 in local; "
        "run both with the same number; the split of seed 1 differs between fedavg and local, by "
        "the digests in config.json; run both on the same data."
    ]
    assert not [note for note in compared.notes if "compared with local on" in note]
    assert compared.verdicts[0] in compared.limits


def test_a_setting_of_the_reference_with_as_many_rounds_is_taken(tmp_path):
    gaining(tmp_path, **{"num-server-rounds": 40, "learning-rate": 0.2})
    for seed in range(3):
        write_run(tmp_path, "local", seed, [0.55, 0.55], **{"num-server-rounds": 40})
    assert compare(tmp_path).table.loc["fedavg", "gain"] == pytest.approx(0.655 - 0.55)


def test_a_client_that_never_gave_a_valid_reply_leaves_no_verdict(tmp_path):
    paths = gaining(tmp_path)
    for seed in (0, 2):
        fail(paths[seed], 0, rounds=(1, 2))
    fail(paths[1], 1, rounds=(2,))
    compared = compare(tmp_path)
    silent = "client 0 gave no valid reply in 2 of 2 rounds of seeds 0, 2"
    assert compared.verdicts == [
        f"fedavg has no verdict against local: in fedavg {silent}; correct that and run it again."
    ]
    once = "client 1 gave no valid reply in 1 of 2 rounds of seed 1"
    assert f"In fedavg {silent}, {once}." in compared.notes
    against = compare(tmp_path, against="fedavg").verdicts
    assert against == [
        f"local has no verdict against fedavg: in fedavg {silent}; correct that and run it again."
    ]


def test_a_client_that_failed_in_some_rounds_is_noted(tmp_path):
    paths = gaining(tmp_path)
    fail(paths[1], 1, rounds=(2,))
    compared = compare(tmp_path)
    assert compared.table.loc["fedavg", "verdict"] == "better"
    assert "In fedavg client 1 gave no valid reply in 1 of 2 rounds of seed 1." in compared.limits


def test_without_a_common_seed_the_note_says_which_to_run(tmp_path):
    write(tmp_path, local={0: [0.5, 0.6]}, kt_pfl={1: [0.6, 0.7], 2: [0.6, 0.8]})
    comparison = compare(tmp_path)
    assert (
        "There is no run of local with a seed of the others, so there are no verdicts; "
        "run it with seed 1, 2."
    ) in comparison.notes
    assert comparison.verdicts == [] and comparison.pairs == {}
