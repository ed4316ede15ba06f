"""Settings of one method are ranked by validation accuracy, and by nothing else."""

import io
import shutil
from itertools import product

import numpy as np
import pandas as pd
import pytest
from helpers import change_json, read_lines, write_lines
from test_comparison import write_run
from typer.testing import CliRunner

from fedkd_flwr.analysis.across import compare_across
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.effects import matrix_of_pairs, notes_on_pairs
from fedkd_flwr.analysis.reference_runs import (
    accuracies_on_common_seeds,
    best_first,
    validation_accuracy,
)
from fedkd_flwr.cli import app
from fedkd_flwr.config import ConfigError
from fedkd_flwr.runs import Run

SMALL_RHO, LARGE_RHO = "kt-pfl (rho=0.1)", "kt-pfl (rho=0.6)"


def set_validation(run: Run, accuracy: float | None) -> Run:
    """Return a run whose last round has another validation accuracy, None for no such data."""
    rows = run.round_rows
    rows[-1]["validation_accuracy_mean"] = accuracy
    return run


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    import fedkd_flwr
    from tests.conftest import SMALL

    folder = tmp_path_factory.mktemp("grid")
    base = {**SMALL, "models": "mlp", "num-server-rounds": 1}
    for name, settings in {
        "local": {"strategy": "local"},
        "small": {"kt-pfl.rho": 0.1},
        "large": {"kt-pfl.rho": 0.6},
    }.items():
        fedkd_flwr.run({**base, **settings}, output_dir=folder / name)
    return folder


def opened(grid, small, large):
    from fedkd_flwr import load_run

    runs = [load_run(grid / name) for name in ("local", "small", "large")]
    return [runs[0], set_validation(runs[1], small), set_validation(runs[2], large)]


def test_the_settings_of_a_method_are_ordered_by_validation_accuracy(grid):
    for small, large, first in ((0.9, 0.2, SMALL_RHO), (0.2, 0.9, LARGE_RHO)):
        compared = compare(opened(grid, small, large))
        of_kt_pfl = [label for label in compared.table.index if label != "local"]
        assert of_kt_pfl[0] == first
        assert list(compared.groups) == list(compared.table.index)
        assert "The settings of kt-pfl are ranked by validation accuracy." in compared.notes
        ranked, _ = best_first([SMALL_RHO, LARGE_RHO], compared.groups)
        assert ranked[0] == first


def with_seed(run: Run, seed: int) -> Run:
    run.description["config"]["seed"] = seed
    return run


def test_settings_are_ranked_on_the_seeds_that_all_of_them_have(grid):
    _, small, large = opened(grid, 0.5, 0.4)
    easy_seed = with_seed(opened(grid, 0.5, 0.9)[2], 7)
    labels, groups = [LARGE_RHO, SMALL_RHO], {SMALL_RHO: [small], LARGE_RHO: [large, easy_seed]}
    assert best_first(labels, groups)[0] == [SMALL_RHO, LARGE_RHO]
    assert accuracies_on_common_seeds("kt-pfl", labels, groups)[LARGE_RHO] == [0.4]
    groups[LARGE_RHO] = [easy_seed]
    ordered, note = best_first(labels, groups)
    assert ordered == [SMALL_RHO, LARGE_RHO]
    assert "settings of kt-pfl have no seed in common" in note


def test_without_validation_data_nothing_is_ranked(grid):
    compared = compare(opened(grid, None, 0.5))
    assert any("kt-pfl are not ranked" in note for note in compared.notes)
    with pytest.raises(
        ConfigError, match="has no validation data, which ranking needs; set client-split"
    ):
        validation_accuracy(compared.groups[SMALL_RHO][0])


def test_a_run_without_a_last_evaluation_is_not_reported_as_lacking_validation_data(grid):
    runs = opened(grid, None, 0.5)
    runs[1].round_rows[-1]["accuracy_mean"] = None
    with pytest.raises(ConfigError, match=r"small .* no client was evaluated in its last round, 1"):
        validation_accuracy(runs[1])


GAINS = {"local": 0.0, "kt-pfl": 0.1, "fedavg": 0.001}
JITTER = {"local": 0, "kt-pfl": 1, "fedavg": 2}


def write_methods(folder, methods=GAINS, seeds=range(5)):
    for method in methods:
        for seed in seeds:
            jitter = 0.002 * (seed * JITTER[method] % 5)
            accuracy = 0.5 + GAINS[method] + jitter
            write_run(folder, method, seed, [accuracy, accuracy])
    return folder


def test_each_pair_has_a_gain_and_a_verdict_in_both_directions(tmp_path):
    compared = compare(write_methods(tmp_path))
    matrix = matrix_of_pairs(compared.pairs, list(compared.table.index)).set_index("method")
    assert matrix.loc["kt-pfl", "local"] == "+10.4 better"
    assert matrix.loc["local", "kt-pfl"] == "-10.4 worse"
    assert matrix.loc["kt-pfl", "fedavg"].endswith(" better")
    assert matrix.loc["local", "local"] == "-"
    assert "over 3 pairs" in " ".join(notes_on_pairs(compared.pairs))


def test_a_csv_file_has_a_row_of_numbers_for_each_pair(tmp_path):
    write_methods(tmp_path)
    result = CliRunner().invoke(app, ["compare", str(tmp_path), "--pairs", "--format", "csv"])
    pairs = pd.read_csv(io.StringIO(result.stdout.split("\n\n")[1]))
    assert len(pairs) == 6
    row = pairs.set_index(["method", "over"]).loc["kt-pfl", "local"]
    assert row["gain"] == pytest.approx(0.104)
    assert row["low"] < row["gain"] < row["high"]
    assert (row["seeds"], row["family"], row["verdict"]) == (5, 3, "better")


@pytest.mark.parametrize(
    ("layout", "cell", "start"),
    [
        ("markdown", "| +10.4 better |", "- "),
        ("latex", "& +10.4 better", "% "),
        ("csv", "better", None),
    ],
)
def test_the_command_prints_the_matrix_and_its_notes(layout, cell, start, tmp_path):
    write_methods(tmp_path)
    arguments = ["compare", str(tmp_path), "--pairs", "--format", layout]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and cell in result.stdout
    blocks = result.stdout.split("\n\n")
    assert len(blocks) == (4 if layout == "markdown" else 2)  # Markdown has a gap before its notes
    what_cells_are, *others = notes_on_pairs(compare(tmp_path).pairs)
    assert (what_cells_are in result.output) == (layout != "csv")
    for note in others:
        assert note in (result.stdout if start else result.stderr)
        assert not start or f"\n{start}{note}\n" in result.stdout
        assert start or note not in result.stdout


# ---- Methods across comparisons ------------------------------------------------------


@pytest.fixture
def folders(tmp_path):
    """Six comparisons: KT-pFL is above `local` in each, FedMD in three."""
    paths = []
    for number in range(6):
        folder = tmp_path / f"data-{number}"
        write_run(folder, "local", 0, [0.5, 0.5])
        write_run(folder, "kt-pfl", 0, [0.6 + 0.01 * number] * 2)
        write_run(folder, "fedmd", 0, [0.51 + 0.01 * number if number % 2 else 0.4] * 2)
        paths.append(folder)
    return paths


def test_wins_and_ranks_are_counted_over_comparisons(folders):
    across = compare_across(folders)
    assert list(across.table.index) == ["kt-pfl", "fedmd", "local"]
    assert across.table["rank"].tolist() == [1, 2.5, 2.5]
    assert across.table["wins"].tolist() == [6, 3, 0]
    # All of six signs alike: 2 / 2⁶, and twice that after Holm.
    assert across.table.loc["kt-pfl", "p_value"] == pytest.approx(2 / 64)
    assert across.table.loc["kt-pfl", "p_holm"] == pytest.approx(4 / 64)
    # Friedman: 12 / (6·3·4) · 6² · (1² + 2.5² + 2.5²) - 3·6·4 = 9, and exp(-9 / 2).
    assert across.friedman == pytest.approx(0.0111, abs=1e-4)


def test_accuracies_that_differ_by_rounding_are_ties(tmp_path):
    orders = ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1])
    assert sum(orders[0]) != sum(orders[1])
    for seed in range(6):
        first, second = orders[seed % 2], orders[1 - seed % 2]
        reached = {"kt-pfl": first, "fedmd": second, "local": [0.1, 0.1, 0.1]}
        for method, accuracies in reached.items():
            write_run(tmp_path / "data", method, seed, accuracies)
    across = compare_across([tmp_path / "data"], per_seed=True)
    assert across.table["rank"].tolist() == [1.5, 1.5, 3]
    # Friedman: 12 / (6·3·4) · 6² · (2 · 1.5² + 3²) - 3·6·4 = 9, and 12 for ties of two.
    assert across.friedman == pytest.approx(np.exp(-12 / 2))


def test_seeds_can_be_the_units(tmp_path):
    reached = {"kt-pfl": (0.6, 0.7, 0.8), "fedmd": (0.5, 0.4, 0.3), "local": (0.5, 0.5, 0.5)}
    for method, accuracies in reached.items():
        for seed, accuracy in enumerate(accuracies):
            write_run(tmp_path / "data", method, seed, [accuracy] * 2)
    across = compare_across([tmp_path / "data"], per_seed=True)
    assert across.gains.loc["data"].loc[2].to_dict() == pytest.approx(
        {"kt-pfl": 0.3, "local": 0, "fedmd": -0.2}
    )
    assert across.table["wins"].to_dict() == {"kt-pfl": 3, "local": 0, "fedmd": 0}
    assert "over 3 seeds of 1 comparison." in across.notes[0]
    with pytest.raises(ConfigError, match="at least two seeds"):
        compare_across([tmp_path / "data"])


@pytest.mark.parametrize("against", ["local", "fedmd"])
def test_the_reference_has_its_lowest_batch_order(against, tmp_path):
    """The best of several orders on validation data would be above a reference by chance."""
    for number in range(2):
        folder = tmp_path / f"data-{number}"
        write_run(folder, "kt-pfl", 0, [0.6, 0.6])
        for method, order in product(("local", "fedmd"), range(2)):
            accuracy = 0.5 + 0.2 * order
            path = write_run(folder, method, 0, [accuracy] * 2, **{"batch-order": order})
            rounds = read_lines(table := path / "rounds.jsonl")
            write_lines(table, [{**row, "validation_accuracy_mean": accuracy} for row in rounds])
    gains = compare_across(sorted(tmp_path.iterdir()), against).gains
    assert gains["kt-pfl"].tolist() == [0.1, 0.1]


def test_a_method_without_all_seeds_is_left_out_and_named(folders):
    """Its mean over the other seeds would be beside a mean of `local` over all of them."""
    write_run(folders[0], "local", 1, [0.1, 0.1])
    write_run(folders[0], "fedmd", 1, [0.2, 0.2])
    write_run(folders[0], "kt-pfl", 1, [0.05, 0.05], finished=False)
    for per_seed in (False, True):
        across = compare_across(folders, per_seed=per_seed)
        assert sorted(across.table.index) == ["fedmd", "local"]
        assert across.notes[0] == (
            "Methods are left out that lack results of a seed: kt-pfl (seed 1 of data-0)."
        )
        unfinished = "data-0: kt-pfl-1-5 is unfinished (2 of 2 rounds) and left out."
        assert across.notes[1] == unfinished
    with pytest.raises(ConfigError, match=r"needs kt-pfl and .* lack results of a seed: kt-pfl"):
        compare_across(folders, against="kt-pfl")


def test_gains_are_matched_by_client(tmp_path):
    """Two clients are missing: the mean of the others is above that of `local` over all four."""
    for number in range(2):
        folder = tmp_path / f"data-{number}"
        write_run(folder, "local", 0, [0.4, 0.4, 0.8, 0.8])
        run = write_run(folder, "kt-pfl", 0, [0.3, 0.3, 0.78, 0.79])
        rows = read_lines(table := run / "clients.jsonl")
        write_lines(table, [row for row in rows if row["round"] == 1 or row["partition_id"] > 1])
    across = compare_across(sorted(tmp_path.iterdir()))
    assert across.table.loc["kt-pfl", "gain"] == pytest.approx(-0.015)
    assert across.table.loc["kt-pfl", "wins"] == 0


def test_a_copied_run_is_no_further_unit(folders, tmp_path):
    for number, run in enumerate(sorted(folders[0].iterdir())):
        change_json(run / "config.json", id=f"{number:08x}ab")
    copy = shutil.copytree(folders[0], tmp_path / "copy")
    with pytest.raises(
        ConfigError, match=r"^data-0 and copy hold the same run, .* with seed 0 \(id "
    ):
        compare_across([*folders, copy])


def test_methods_with_other_rounds_than_the_reference_are_left_out(folders):
    for folder in folders:
        write_run(folder, "fedavg", 0, [0.9, 0.9], **{"num-server-rounds": 40})
    across = compare_across(folders)
    assert "fedavg" not in across.table.index
    assert "num-server-rounds is 40 in fedavg and 2 in local" in " ".join(across.notes)


def test_the_command_prints_a_table(folders):
    result = CliRunner().invoke(app, ["compare", "--across", *map(str, folders)])
    assert result.exit_code == 0, result.output
    assert "| kt-pfl | 1.00 | +12.5 | 6 of 6 | 0.062 |" in result.stdout
    assert "Friedman's test has p = 0.011" in result.stdout


def test_options_of_one_comparison_are_refused_by_name(folders):
    command = ["compare", "--across", *map(str, folders)]
    unread = {
        "--format": ["csv"], "--per-client": [], "--pairs": [],
        "--figures": ["figures"], "--best-evaluation": [], "--allow-code": ["*"],
    }  # fmt: skip
    for name, values in unread.items():
        result = CliRunner().invoke(app, [*command, name, *values])
        assert result.exit_code == 1, name
        assert f"--across does not take {name}; leave that out" in result.stderr
    result = CliRunner().invoke(app, [*command, "--pairs", "--by-code"])
    assert "does not take --pairs, --by-code;" in result.stderr


def test_too_few_folders_or_methods_are_refused_in_one_sentence(folders, tmp_path):
    with pytest.raises(ConfigError, match="at least two folders"):
        compare_across(folders[:1])
    write_run(tmp_path / "other", "ditto", 0, [0.5, 0.5])
    with pytest.raises(ConfigError, match="needs local and at least one other method"):
        compare_across([folders[0], tmp_path / "other"])
