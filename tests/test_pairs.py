"""Every method over each other one, in the terminal and in the report."""

import io

import pandas as pd
import pytest
from test_comparison import write_run
from typer.testing import CliRunner

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.effects import matrix_of_pairs, notes_on_pairs
from fedkd_flwr.cli import app

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


def test_two_methods_have_no_matrix(tmp_path):
    compared = compare(write_methods(tmp_path, ["local", "kt-pfl"]))
    assert matrix_of_pairs(compared.pairs, list(compared.table.index)).empty
    result = CliRunner().invoke(app, ["compare", str(tmp_path), "--pairs"])
    assert result.exit_code == 1
    assert "at least three methods" in result.output


@pytest.mark.parametrize(
    ("layout", "cell"),
    [("markdown", "| +10.4 better |"), ("latex", "& +10.4 better")],
)
def test_the_command_prints_the_matrix(layout, cell, tmp_path):
    write_methods(tmp_path)
    arguments = ["compare", str(tmp_path), "--pairs", "--format", layout]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert cell in result.output


def test_a_csv_file_has_a_row_of_numbers_for_each_pair(tmp_path):
    write_methods(tmp_path)
    result = CliRunner().invoke(app, ["compare", str(tmp_path), "--pairs", "--format", "csv"])
    pairs = pd.read_csv(io.StringIO(result.stdout.split("\n\n")[1]))
    assert len(pairs) == 6
    row = pairs.set_index(["method", "over"]).loc["kt-pfl", "local"]
    assert row["gain"] == pytest.approx(0.104)
    assert row["low"] < row["gain"] < row["high"]
    assert (row["seeds"], row["family"], row["verdict"]) == (5, 3, "better")


@pytest.mark.parametrize(("layout", "start"), [("markdown", "- "), ("latex", "% "), ("csv", None)])
def test_notes_are_no_prose_in_the_matrix(layout, start, tmp_path):
    write_methods(tmp_path)
    arguments = ["compare", str(tmp_path), "--pairs", "--format", layout]
    result = CliRunner().invoke(app, arguments)
    blocks = result.stdout.split("\n\n")
    assert len(blocks) == (4 if layout == "markdown" else 2)  # Markdown has a gap before its notes
    what_cells_are, *others = notes_on_pairs(compare(tmp_path).pairs)
    assert (what_cells_are in result.output) == (layout != "csv")
    for note in others:
        assert note in (result.stdout if start else result.stderr)
        assert not start or f"\n{start}{note}\n" in result.stdout
        assert start or note not in result.stdout


def test_without_enough_seeds_the_notes_say_what_is_missing(tmp_path):
    compared = compare(write_methods(tmp_path, seeds=range(2)))
    assert any("at least 3 common seeds" in note for note in notes_on_pairs(compared.pairs))
