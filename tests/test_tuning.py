"""Tuning: validation data alone chooses, and what is chosen is a sweep."""

from pathlib import Path

import pytest

from fedkd_flwr.analysis.tuning import (
    Candidate,
    best_of_each,
    read_grid,
    sweep_text,
    validation_accuracy,
)
from fedkd_flwr.config import ConfigError
from fedkd_flwr.methods import METHODS
from fedkd_flwr.runs import load_run
from fedkd_flwr.sweeps import read_sweep
from tests.test_comparison import write_lines, write_run

ROOT = Path(__file__).parent.parent
GRID = ROOT / "docs" / "results" / "compare" / "grid.toml"
CHOSEN = sorted((ROOT / "conf" / "compare" / "chosen").glob("*.toml"))


def test_the_best_on_validation_data_is_chosen_whatever_the_test_data_say(tmp_path):
    path = write_run(tmp_path, "local", 0, [0.9, 0.9])
    rows = [{**row, "validation_accuracy_mean": 0.25} for row in load_run(path).round_rows]
    write_lines(path / "rounds.jsonl", rows)
    assert validation_accuracy(load_run(path)) == 0.25
    low, high, tie = (Candidate("local", {"learning-rate": rate}) for rate in (0.1, 0.2, 0.3))
    other = Candidate("ditto", {})
    assert best_of_each([(low, 0.25), (high, 0.5), (other, 0.1), (tie, 0.5)]) == [high, other]


def test_runs_without_validation_data_are_refused(tmp_path):
    path = write_run(tmp_path, "local", 0, [0.9, 0.9])
    with pytest.raises(ConfigError, match="no validation data to choose by"):
        validation_accuracy(load_run(path))


def test_candidates_become_a_sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    candidates = [
        Candidate("local", {"learning-rate": 0.5}),
        Candidate("kt-pfl", {"kt-pfl.t-squared": False, "kt-pfl.rho": 0.25}),
    ]
    path.write_text(sweep_text({"dataset": "mnist"}, candidates, [3, 4], "Two\nlines"))
    runs = [configuration.flat() for configuration in read_sweep(path).values()]
    assert [(run["strategy"], run["seed"]) for run in runs] == [
        ("local", 3), ("kt-pfl", 3), ("local", 4), ("kt-pfl", 4)
    ]  # fmt: skip
    assert runs[0]["learning-rate"] == 0.5
    assert (runs[3]["kt-pfl.t-squared"], runs[3]["kt-pfl.rho"]) == (False, 0.25)
    assert {run["dataset"] for run in runs} == {"mnist"}


def test_the_grid_gives_every_method_the_same_number_of_settings():
    candidates = read_grid(GRID)
    counts = {
        name: sum(candidate.strategy == name for candidate in candidates)
        for name in METHODS.keys() - {"fednas", "spider", "persfl-gd"}
    }
    assert set(counts.values()) == {3}
    assert all(candidate.strategy in counts for candidate in candidates)
    mixed = {candidate.strategy for candidate in read_grid(GRID, ["mlp", "lenet"])}
    assert mixed == {name for name in counts if not METHODS[name].strategy.needs_one_model}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedavgg = [{}]", "tunes fedavgg, which is none of the methods"),
        ("local = [0.1]", "needs a list of tables for local"),
    ],
)
def test_what_is_no_grid_is_refused(tmp_path, text, message):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_grid(path)


@pytest.mark.parametrize("path", CHOSEN, ids=lambda path: path.stem)
def test_what_was_chosen_is_of_the_grid(path):
    candidates = read_grid(GRID)
    configs = [configuration.flat() for configuration in read_sweep(path).values()]
    for config in configs:
        own = [c.settings for c in candidates if c.strategy == config["strategy"]]
        assert any(all(config[key] == value for key, value in one.items()) for one in own)
    assert 0 not in {config["seed"] for config in configs}
