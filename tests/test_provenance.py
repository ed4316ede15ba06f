"""What made a run is recorded, and a comparison says where runs differ in it."""

import subprocess

import pytest
from helpers import change_json

import fedkd_flwr
from fedkd_flwr.analysis.notes import notes_on_provenance
from fedkd_flwr.client_app import app as client_app
from fedkd_flwr.config import read_config
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.grids import FastPollingGrid, SimulationGrid
from fedkd_flwr.runs import load_run, provenance
from fedkd_flwr.server_app import serve
from strategies.core import membership, replies, versions


@pytest.fixture
def finished(small, tmp_path):
    return fedkd_flwr.run(small, strategy="local", output_dir=tmp_path / "run")


def changed(run, **parts):
    change_json(run.path / "config.json", **parts)
    return load_run(run.path)


def test_a_run_records_the_commit_and_the_processor(finished):
    recorded = finished.description
    head = subprocess.run(
        ["git", "-C", str(provenance.PROJECT), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    assert recorded["project"]["version"] == fedkd_flwr.__version__
    assert recorded["project"]["commit"] == head.stdout.strip()
    assert recorded["processor"] and recorded["vector_extensions"]


@pytest.mark.parametrize(("kind", "recorded"), [(SimulationGrid, True), (FastPollingGrid, False)])
def test_a_simulation_records_its_data_and_a_federation_cannot(kind, recorded, small, tmp_path):
    settings = {**small, "strategy": "local", "models": "mlp", "num-server-rounds": 1}
    configuration = read_config({**settings, "output-dir": str(tmp_path / "run")})
    grid = InProcessGrid(client_app, small["num-clients"], configuration)
    run = serve(kind(grid), configuration)
    assert (run.path / "split.json").exists() == recorded
    assert bool(run.description.get("data")) == recorded


def test_runs_of_the_same_code_and_machine_give_no_note(finished):
    unmodified = {**finished.description["project"], "modified": False}
    run = changed(finished, project=unmodified)
    assert notes_on_provenance([run, run]) == []


def test_a_comparison_says_in_what_runs_differ(finished, small, tmp_path):
    other = fedkd_flwr.run(small, strategy="fedmd", output_dir=tmp_path / "other")
    project = {"version": "0.0.9", "commit": "1" * 40, "modified": False}
    older = changed(other, project=project, vector_extensions="NEON")
    note = "\n".join(fedkd_flwr.compare([finished, older]).notes)
    assert f"project version ({fedkd_flwr.__version__}, 0.0.9)" in note
    assert "11111111" in note
    assert "NEON" in note
    assert "rerun the older ones" in note


def test_a_modified_checkout_is_named(finished):
    run = changed(finished, project={"version": "1", "commit": "2" * 40, "modified": True})
    assert notes_on_provenance([run]) == ["Runs that code other than its recorded commit made: 1."]


def test_processes_that_continued_a_run_count_unless_their_rounds_were_repeated(small, tmp_path):
    small = {**small, "strategy": "local"}
    run = fedkd_flwr.run(small, output_dir=tmp_path / "run")
    project = {"version": "1", "commit": "2" * 40, "modified": False}
    here = {**run.description, "project": project}
    modified = {**here, "project": {**project, "modified": True}, "after_round": 1}
    upgraded = {**here, "versions": {**here["versions"], "torch": "0.0.1"}, "after_round": 1}
    legs = changed(run, project=project, continued=[modified, upgraded])
    (note,) = notes_on_provenance([legs])
    assert f"torch ({here['versions']['torch']}, 0.0.1)" in note
    legs = changed(run, continued=[upgraded, modified])
    assert notes_on_provenance([legs]) == ["Runs that code other than its recorded commit made: 1."]


OURS = {"flwr": "1.41.0", "fedkd-flwr": "0.1.0", "torch": "2.15.0"}


@pytest.mark.parametrize(
    ("sent", "refused", "differs"),
    [
        ("flwr 1.41.0, fedkd-flwr 0.1.0, torch 2.15.0", False, False),
        ("flwr 1.41.2, fedkd-flwr 0.1.0, torch 2.14.0+cpu", False, True),
        ("flwr 1.40.0, fedkd-flwr 0.1.0, torch 2.15.0", True, True),
        ("flwr 2.41.0", True, True),
        ("fedkd-flwr 0.2.0", True, True),
        ("fedkd-flwr unknown", True, True),
        ("", False, False),
        ("evil 1, nothing", False, False),
    ],
)
def test_another_minor_version_of_flower_or_the_project_is_refused(sent, refused, differs):
    assert bool(versions.refusal(OURS, sent)) is refused
    assert bool(versions.difference(OURS, sent)) is differs


def test_a_node_that_differs_is_left_out_or_said(small, tmp_path, monkeypatch, caplog):
    """The server's versions are changed here, since all clients are in this process."""
    real = versions.installed_versions()

    def server_has(**changed):
        for module in (membership, replies):
            monkeypatch.setattr(module, "installed_versions", lambda: {**real, **changed})

    server_has(torch="9.9.9")
    with caplog.at_level("WARNING"):
        run = fedkd_flwr.run(small, strategy="local", output_dir=tmp_path / "said")
    assert list(run.rounds["failures"]) == [0] * len(run.rounds)
    said = [record.getMessage() for record in caplog.records]
    assert f"client 0 has torch {real['torch']} instead of 9.9.9; its numbers may differ" in said
    server_has(flwr="1.99.0")
    with pytest.raises(RuntimeError, match=r"has flwr .+ instead of 1\.99\.0: install"):
        fedkd_flwr.run(small, strategy="local", output_dir=tmp_path / "refused")
