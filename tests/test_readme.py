"""The README's numbers are those of the published runs, and it stays short."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
README = (ROOT / "README.md").read_text()
DATASETS = {"Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10"}
SPLITS = {"two groups": "k-classes-grouped", "Dirichlet 0.1": "dirichlet"}
MODELS = {"same": "same", "four": "mixed"}
NAMED = {"local", "kt-pfl", "perfed-ckt"}
"""Methods that the column "best other method" leaves out."""


@pytest.fixture
def gains(monkeypatch):
    """Return the function that gives each method's mean gain in a published comparison."""
    monkeypatch.setattr(sys, "path", [str(RESULTS), *sys.path])
    values = importlib.import_module("values")
    published = importlib.import_module("publish_runs").read_published

    def of(file):
        methods = {run.settings["strategy"] for run in published(file)}
        return {method: values.gain(file, method) for method in methods}

    return of


def rows_of_the_table():
    section = README.partition("## When does it help?")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


@pytest.mark.parametrize("row", rows_of_the_table(), ids=lambda row: " ".join(row[:2]))
def test_a_row_of_the_table_is_what_the_published_runs_give(row, gains):
    clients, models, kt_pfl, perfed_ckt, best_other, fedavg = row
    dataset, split = clients.split(", ")
    name = f"{DATASETS[dataset]}-{MODELS[models]}-{SPLITS[split]}.json"
    found = gains(RESULTS / "benchmark-tuned" / name)
    assert kt_pfl.replace("\N{MINUS SIGN}", "-") == found["kt-pfl"]
    assert perfed_ckt.replace("\N{MINUS SIGN}", "-") == found["perfed-ckt"]
    assert fedavg.replace("\N{MINUS SIGN}", "-") == found.get("fedavg", "cannot run")
    method, gain = best_other.split()
    others = {name: float(value) for name, value in found.items() if name not in NAMED}
    assert gain == found[method.strip("`")]
    assert float(gain) == max(others.values())


def test_the_table_shows_losses_and_has_at_most_six_rows():
    rows = rows_of_the_table()
    assert 3 <= len(rows) <= 6
    assert any("\N{MINUS SIGN}" in cell for row in rows for cell in row[2:4])


def test_the_readme_is_short_and_has_no_generated_markers():
    assert len(README.splitlines()) <= 90
    assert "<!--" not in README
