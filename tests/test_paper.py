"""Accuracies of a paper next to ours: matching of runs, and notes on different sizes."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.paper import beside_paper, read_figures
from fedkd_flwr.config import ConfigError
from fedkd_flwr.sweeps import read_sweep
from tests.test_comparison import write_run

SWEEPS = Path(__file__).parent.parent / "conf" / "sweeps"

FIGURES = """
source = "A paper, Table 1"

[[columns]]
where = { num-clients = 3 }
size = { num-server-rounds = 200, models = "mlp" }
figures = [
    { strategy = "hypcluster", hypcluster.clusters = 2, accuracy = 34.0 },
    { strategy = "hypcluster", hypcluster.clusters = 3, accuracy = 60.0 },
    { strategy = "ditto", accuracy = 67.0 },
]

[[columns]]
where = { num-clients = 4 }
figures = [{ strategy = "hypcluster", hypcluster.clusters = 3, accuracy = 1.0 }]
"""


@pytest.fixture
def figures(tmp_path):
    """The file of `FIGURES`."""
    path = tmp_path / "figures.toml"
    path.write_text(FIGURES)
    return path


def test_a_figure_is_matched_to_runs_by_its_settings(tmp_path, figures):
    runs = tmp_path / "runs"
    write_run(runs, "hypcluster", 0, [0.6, 0.7, 0.8], **{"hypcluster.clusters": 3})
    write_run(runs, "local", 0, [0.5, 0.5, 0.5])
    comparison = beside_paper(compare(runs), read_figures(figures))
    row = comparison.table.loc["hypcluster"]
    assert row["paper"] == pytest.approx(0.6)
    assert row["difference"] == pytest.approx(0.1)
    assert np.isnan(comparison.table.loc["local"]["paper"])
    assert comparison.notes[-2:] == [
        "The paper's accuracy is from A paper, Table 1.",
        "Not at the paper's size: num-server-rounds is 2, in the paper 200.",
    ]
    heading, _, first, *_ = comparison.to_markdown().splitlines()
    assert heading.endswith("| seconds | paper | difference, points |")
    assert first.endswith("| 60.0% | +10.0 |")


def test_a_run_of_an_older_version_has_the_defaults_of_later_settings(tmp_path, figures):
    path = write_run(tmp_path / "runs", "ditto", 0, [0.6, 0.7, 0.8])
    figures.write_text(FIGURES.replace('models = "mlp"', "batch-order = 0, batch-size = 1"))
    content = json.loads((path / "config.json").read_text())
    default = content["config"].pop("batch-size")
    del content["config"]["batch-order"]
    (path / "config.json").write_text(json.dumps(content))
    notes = beside_paper(compare(tmp_path / "runs"), read_figures(figures)).notes
    assert not [note for note in notes if "batch-order" in note]
    assert f"Not at the paper's size: batch-size is {default}, in the paper 1." in notes


def test_no_or_two_matching_figures_raise_an_error(tmp_path, figures):
    runs = tmp_path / "runs"
    write_run(runs, "ditto", 0, [0.6, 0.7, 0.8])
    figures.write_text(FIGURES.replace('"ditto"', '"hypcluster"'))
    with pytest.raises(ConfigError, match="has no number for any of these runs"):
        beside_paper(compare(runs), read_figures(figures))
    write_run(runs, "hypcluster", 0, [0.6, 0.7, 0.8], **{"hypcluster.clusters": 3})
    with pytest.raises(ConfigError, match="has 2 numbers for hypcluster-0"):
        beside_paper(compare(runs), read_figures(figures))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num-clients = 3", "clients = 3", "names clients, which is not a setting"),
        (", accuracy = 67.0", "", "a row without an accuracy"),
        ('source = "A paper, Table 1"', "", "needs the key source"),
        ("where = { num-clients = 3 }", 'where = "mnist"', "where and size are optional tables"),
        (
            'size = { num-server-rounds = 200, models = "mlp" }',
            "size = 3",
            "where and size are optional tables",
        ),
        ('{ strategy = "ditto", accuracy = 67.0 }', "67.0", "a list of tables figures"),
    ],
)
def test_invalid_files_of_figures_raise_an_error(figures, old, new, message):
    figures.write_text(FIGURES.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        read_figures(figures)


@pytest.mark.parametrize("path", sorted((SWEEPS / "papers").glob("*.toml")), ids=lambda p: p.stem)
def test_the_sweep_of_each_paper_table_matches_its_figures(path):
    # Runs of the unchanged sweep have the paper's size.
    figures = read_figures(path).figures
    configs = [
        configuration.flat()
        for configuration in read_sweep(SWEEPS / path.name, {"seed": 0}).values()
    ]
    column = [figure for figure in figures if any(map(figure.is_of, configs))]
    per_column = {config["strategy"] for config in configs} - {"local"}
    assert per_column <= {figure.settings["strategy"] for figure in column}
    for figure in column:
        assert all(
            config[name] == value
            for config in filter(figure.is_of, configs)
            for name, value in figure.size.items()
        )
