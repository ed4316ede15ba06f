"""The README stays short, shows losses, and its numbers are checked like those of the results."""

import tomllib
from pathlib import Path

from fedkd_flwr.methods import METHODS
from results import pages

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def tables():
    """Return the tables that are written from the results, each a list of rows of cells."""
    blocks = [match[0] for match in pages.BLOCK.finditer(README)]
    rows = [[line for line in block.splitlines() if line.startswith("|")][2:] for block in blocks]
    return [[line.strip("| ").split(" | ") for line in lines] for lines in rows]


def test_its_tables_have_at_most_six_rows():
    # tests/test_results.py compares them with the runs.
    assert all(3 <= len(table) <= 6 for table in tables())
    assert tables()


def test_it_is_short_and_has_no_other_markers():
    assert len(README.splitlines()) <= 90
    assert "<!--" not in pages.INLINE.sub("", pages.BLOCK.sub("", README))


def test_the_number_of_methods_is_that_of_the_registry():
    description = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    for text in (README, description):
        assert f": {len(METHODS) - 1} methods and local training, one protocol" in text
