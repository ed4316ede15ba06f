"""The README stays short, shows losses, and its numbers are checked like those of the results."""

import importlib
import tomllib
from pathlib import Path

import pytest

from fedkd_flwr.methods import METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def scripts(monkeypatch):
    """Make the scripts of the results pages importable."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "results")
    return importlib.import_module("check")


def test_the_table_and_the_numbers_are_checked_against_the_runs(scripts):
    # tests/test_results.py runs this check for every page.
    assert ROOT / "README.md" in scripts.pages()
    assert ROOT / "README.md" in scripts.results_pages()
    (block,) = scripts.BLOCK.finditer(README)
    assert block[2].startswith("ten_seeds.table ")


def test_the_table_shows_losses_and_has_at_most_six_rows(scripts):
    (block,) = scripts.BLOCK.finditer(README)
    rows = [line.strip("| ").split(" | ") for line in block[3].splitlines() if line[:1] == "|"][2:]
    assert 3 <= len(rows) <= 6
    assert all(any(row[column].startswith("**-") for row in rows) for column in (2, 3))


def test_the_rows_are_those_of_the_comparison(scripts):
    ten_seeds = importlib.import_module("ten_seeds")
    compare = importlib.import_module("tables").table
    for position, name in enumerate(ten_seeds.SETS):
        rows = {line.split(" | ")[0]: line for line in compare(name, "columns=gain").splitlines()}
        for line in ten_seeds.table("kt-pfl", "fedavg").splitlines()[2:4]:
            cells = line.strip("| ").split(" | ")
            assert cells[2 + position].strip("*") in rows[f"| {cells[0]}"]


def test_the_readme_is_short_and_has_no_other_markers(scripts):
    assert len(README.splitlines()) <= 90
    assert "<!--" not in scripts.BLOCK.sub("", README)


def test_the_number_of_methods_is_that_of_the_registry():
    description = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    for text in (README, description):
        assert f": {len(METHODS) - 1} methods and local training, one protocol" in text
