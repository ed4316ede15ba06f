"""Settings of one method are ranked by validation accuracy, and by nothing else."""

import io

import pandas as pd
import pytest
from test_comparison import write_run
from typer.testing import CliRunner

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
