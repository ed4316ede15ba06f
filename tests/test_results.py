"""Tables and numbers on the results pages agree with the committed JSON files."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedkd_flwr
from fedkd_flwr.analysis.targets import cost_to_target

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FILE = RESULTS / "transfer" / "kt-pfl.json"


@pytest.fixture(scope="module", autouse=True)
def scripts():
    """Make the scripts of the results pages importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RESULTS)
        yield importlib.import_module("check_tables")


def test_generated_text_agrees_with_its_files(scripts, capsys):
    assert scripts.main([]) == 0, capsys.readouterr().out


def test_a_wrong_number_is_reported_and_corrected(scripts, tmp_path):
    shutil.copy(FILE, tmp_path)
    page = tmp_path / "page.md"
    call = "values.accuracy kt-pfl.json kt-pfl"
    page.write_text(f"KT-pFL has <!-- from: {call} -->99.9<!-- end --> percent.\n")
    text, differing = scripts.filled(page)
    assert differing == [call]
    assert text == f"KT-pFL has <!-- from: {call} -->84.5<!-- end --> percent.\n"
    page.write_text(text)
    assert scripts.filled(page) == (text, [])


def test_published_runs_compare_like_the_original_runs(scripts, small, tmp_path):
    publish_runs = importlib.import_module("publish_runs")
    changes = {"client-split": "50/20/30", "num-server-rounds": 3, "models": "mlp"}
    runs = [
        fedkd_flwr.run({**small, **changes, "strategy": name}, output_dir=tmp_path / name)
        for name in ("local", "fedavg")
    ]
    publish_runs.write_json(runs, tmp_path / "runs.json")
    again = publish_runs.read_published(tmp_path / "runs.json")
    expected, found = fedkd_flwr.compare(runs), fedkd_flwr.compare(again)
    assert found.verdicts == expected.verdicts
    columns = ["accuracy", "accuracy_chosen", "clients_decile", "clients_std", "harmed", "bytes"]
    np.testing.assert_allclose(
        found.table[columns].astype(float), expected.table[columns].astype(float), atol=1e-4
    )
    target = runs[1].rounds["accuracy_mean"].iloc[1] - 1e-3
    costs, kept = cost_to_target(runs[1], target), cost_to_target(again[1], target)
    assert kept["rounds_to_target"] == costs["rounds_to_target"]
    assert kept["bytes_to_target"] == costs["bytes_to_target"]
    assert kept["seconds_to_target"] == pytest.approx(costs["seconds_to_target"], abs=0.01)

    # Published in two parts, the second of which replaces one run.
    assert publish_runs.others(runs, tmp_path / "parts.json") == []
    publish_runs.write_json(runs[:1], tmp_path / "parts.json")
    kept = publish_runs.others(runs[1:], tmp_path / "parts.json")
    assert publish_runs.others(runs[:1], tmp_path / "parts.json") == []
    publish_runs.write_json([*kept, *runs[1:]], tmp_path / "both.json")
    assert (tmp_path / "both.json").read_text() == (tmp_path / "runs.json").read_text()

    lines = (runs[1].path / "clients.jsonl").read_text().splitlines()
    (runs[1].path / "clients.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    lacking = [runs[0], fedkd_flwr.load_run(runs[1].path)]
    with pytest.raises(ValueError, match="fedavg has 3 of 4 clients' results"):
        publish_runs.write_json(lacking, tmp_path / "lacking.json")
