"""PersFL's tables: a run becomes rows next to the paper's, and sweeps have the paper's rounds."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import fedkd_flwr
from fedkd_flwr.sweeps import read_sweep

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "persfl"


@pytest.fixture
def script():
    """Return the script that publishes PersFL's tables, as a module of its own."""
    spec = importlib.util.spec_from_file_location("publish_persfl", RESULTS / "publish_persfl.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_becomes_rows_next_to_the_papers(script, small, tmp_path, monkeypatch):
    changes = {"strategy": "persfl", "models": "mlp", "partition": "dirichlet", "max-samples": 300}
    run = fedkd_flwr.run({**small, **changes}, output_dir=tmp_path / "runs" / "one")
    kept = script.published(run) | {"samples": 0}
    last = run.clients[run.clients["round"] == 2]
    assert kept["clients"]["accuracy"] == last["accuracy"].round(4).tolist()
    pairs = run.table("pairs")
    np.testing.assert_allclose(
        np.ravel(kept["pairs"]["accuracy"]), pairs["accuracy"], rtol=0, atol=5e-5
    )
    (tmp_path / "mnist.json").write_text(json.dumps([kept]))
    (tmp_path / "paper.toml").write_text((RESULTS / "paper.toml").read_text())
    monkeypatch.setattr(script, "HERE", tmp_path)
    ours, lost = 100 * last["accuracy"].mean(), 100 * last["accuracy"].mean() - 88.0
    lines = script.table_3().splitlines()
    cells = next(line for line in lines if line.startswith("| DS-2 | `persfl`")).split(" | ")
    assert cells[2:4] == ["2", "1"]
    assert cells[4].startswith(f"{ours:.1f} / ")
    assert cells[5:] == ["88.0 / 1.3", f"{lost:+.1f} |"]


def test_new_runs_replace_equal_runs(script, small, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "HERE", tmp_path)
    old = dict.fromkeys(script.IDENTITY, "") | {"split": "DS-1", "samples": 0, "rounds": 1}
    others = [old | {"method": method, "seed": 0} for method in ("local", "fedavg")]
    equal = old | {"method": "local", "teacher": "optimal", "samples": 300, "seed": 3}
    (tmp_path / script.RUNS).write_text(json.dumps([*others, equal]))
    preset = {**small, "partition": "k-classes"}
    monkeypatch.setattr(script, "preset_of", {"DS-1": preset}.get)
    changes = {"max-samples": 300, "num-server-rounds": 1, "seed": 3, "strategy": "local"}
    run = fedkd_flwr.run({**preset, **changes}, output_dir=tmp_path / "runs" / "one")
    script.write_runs(tmp_path / "runs")
    kept = json.loads((tmp_path / script.RUNS).read_text())
    assert kept == [others[1], others[0], script.published(run)]
    other = fedkd_flwr.run(
        {**preset, **changes, "learning-rate": 0.5}, output_dir=tmp_path / "runs" / "two"
    )
    with pytest.raises(ValueError, match="two differs from its preset in learning-rate"):
        script.write_runs(other.path.parent)


@pytest.mark.parametrize("split", ["ds1", "ds2", "ds3"])
def test_sweeps_have_the_presets_settings_and_the_papers_rounds(split, script):
    position = int(split[-1]) - 1
    rounds = script.load_toml(RESULTS / "paper.toml", "paper's tables")["table7"]
    for sweep in ("persfl-mnist", "persfl-rivals-mnist"):
        for name, configuration in read_sweep(ROOT / f"conf/sweeps/{sweep}-{split}.toml").items():
            method = name.split("-seed")[0].replace("-gd", "")
            if method != "local":  # it is in none of the paper's tables
                assert configuration.run.plan.num_server_rounds == rounds[method][position]
