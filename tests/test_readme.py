"""The README's numbers are those of the published runs, and it stays short."""

import importlib
import sys
from pathlib import Path

import pytest

import fedkd_flwr

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text()
DATASETS = {"Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10"}
SPLITS = {"two groups": "k-classes-grouped", "Dirichlet 0.1": "dirichlet"}
MODELS = {"same": "same", "four": "mixed"}
NAMED = {"local", "kt-pfl", "perfed-ckt"}
"""Methods that the column "best other method" leaves out."""


@pytest.fixture
def table_of(monkeypatch):
    """Return the function that compares the runs of a published set, by method."""
    monkeypatch.setattr(sys, "path", [str(RESULTS), *sys.path])
    read_set = importlib.import_module("runs").read_set

    def of(name):
        table = fedkd_flwr.compare(read_set(name)).table
        return table.rename(index=lambda label: label.partition(" ")[0])

    return of


def cell(table, method):
    """Return a gain with its interval as the README shows it."""
    if method not in table.index:
        return "cannot run"
    gain, low, high = (100 * table.loc[method, ["gain", "gain_low", "gain_high"]]).astype(float)
    return f"{gain:+.1f} ({low:.1f}, {high:.1f})".replace("-", "\N{MINUS SIGN}")


def rows_of_the_table():
    section = README.partition("## When does it help?")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


@pytest.mark.parametrize("row", rows_of_the_table(), ids=lambda row: " ".join(row[:2]))
def test_a_row_of_the_table_is_what_the_published_runs_give(row, table_of):
    clients, models, kt_pfl, perfed_ckt, best_other, fedavg = row
    dataset, split = clients.split(", ")
    table = table_of(f"benchmark-tuned/{DATASETS[dataset]}-{MODELS[models]}-{SPLITS[split]}")
    assert kt_pfl == cell(table, "kt-pfl")
    assert perfed_ckt == cell(table, "perfed-ckt")
    assert fedavg == cell(table, "fedavg")
    method, _, gain = best_other.replace("`", "").partition(" ")
    assert gain == cell(table, method)
    assert method == table.drop(index=list(NAMED))["gain"].astype(float).idxmax()


def test_the_table_shows_losses_and_has_at_most_six_rows():
    rows = rows_of_the_table()
    assert 3 <= len(rows) <= 6
    assert any("\N{MINUS SIGN}" in cell for row in rows for cell in row[2:4])


def test_the_readme_is_short_and_has_no_generated_markers():
    assert len(README.splitlines()) <= 90
    assert "<!--" not in README
