"""Runs that repeat a round, attempts that fail, and other versions."""

import json

import numpy as np
import pytest

import fedkd_flwr
from fedkd_flwr.config import ConfigError
from fedkd_flwr.engines.in_process import InProcessGrid
from fedkd_flwr.runs import RunDirectoryError, load_run, provenance
from fedkd_flwr.runs.provenance import other_major_versions


class OutOfOrderError(RuntimeError):
    """Stands for whatever ends an attempt before its first round is complete."""


def contents(folder):
    """Return all files below a folder, except the lock, which names the last process."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture
def settings(small):
    return {**small, "strategy": "kt-pfl", "models": "mlp", "num-server-rounds": 4}


def test_a_failed_attempt_to_continue_changes_nothing(settings, tmp_path, monkeypatch):
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    before = contents(run.path)

    def fails(*_, **__):
        raise OutOfOrderError

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "send_and_receive", fails)
        with pytest.raises(OutOfOrderError):
            fedkd_flwr.resume(run.path, num_server_rounds=5)
    assert contents(run.path) == before
    assert load_run(run.path).finished
    resumed = fedkd_flwr.resume(run.path, num_server_rounds=5)
    assert list(resumed.rounds["round"]) == [1, 2, 3, 4, 5]
    assert resumed.config["num-server-rounds"] == 5


def test_a_run_that_lost_its_newest_checkpoint_repeats_one_round(settings, tmp_path):
    """The rounds before are the old lines, and all numbers those of a run in one go."""

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(settings, output_dir=path, on_round=stop)
    before = (path / "rounds.jsonl").read_text().splitlines()
    kept = sorted(file.name for file in (path / "checkpoint").glob("server*"))
    assert kept == ["server-000002.safetensors", "server.safetensors"]
    (path / "checkpoint" / "server.safetensors").unlink()
    resumed = fedkd_flwr.resume(path)
    assert resumed.description["continued"][0]["after_round"] == 2
    after = (path / "rounds.jsonl").read_text().splitlines()
    assert after[:2] == before[:2] and after[2] != before[2]
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])
    assert len(resumed.clients) == len(whole.clients)
    np.testing.assert_array_equal(resumed.matrices["coefficients"], whole.matrices["coefficients"])


def test_each_leg_records_its_versions(settings, tmp_path):
    run = fedkd_flwr.run({**settings, "num-server-rounds": 1}, output_dir=tmp_path / "run")
    (leg,) = fedkd_flwr.resume(run.path, num_server_rounds=2).description["continued"]
    assert leg["versions"] == run.description["versions"]
    assert leg["project"]["version"] == fedkd_flwr.__version__


@pytest.mark.parametrize("name", ["flwr", "torch", "fedkd-flwr"])
def test_another_major_version_is_refused_unless_it_is_intended(name, settings, tmp_path):
    run = fedkd_flwr.run({**settings, "num-server-rounds": 1}, output_dir=tmp_path / "run")
    file = run.path / "config.json"
    content = json.loads(file.read_text())
    before = content["project"] if name == "fedkd-flwr" else content["versions"]
    before["version" if name == "fedkd-flwr" else name] = "7.1.2"
    file.write_text(json.dumps(content))
    with pytest.raises(RunDirectoryError, match=rf"{name} 7.1.2 \(now .*--accept-changes"):
        fedkd_flwr.resume(run.path, num_server_rounds=2)
    assert fedkd_flwr.resume(run.path, num_server_rounds=2, accept_changes=True).finished
    # The last leg counts from now on.
    assert fedkd_flwr.resume(run.path, num_server_rounds=3).finished


def test_which_number_is_the_major_version(monkeypatch):
    monkeypatch.setattr(provenance, "version", {"flwr": "1.41.0", "torch": "2.12.0+cpu"}.get)
    monkeypatch.setattr(provenance, "__version__", "0.2.0")
    same = {"project": {"version": "0.2.7"}, "versions": {"flwr": "1.9", "torch": "2.0.1"}}
    assert other_major_versions(same) == []
    assert other_major_versions({}) == []
    other = {"project": {"version": "0.1.0"}, "versions": {"flwr": "2.0", "torch": "2.0.1"}}
    assert other_major_versions(other) == ["fedkd-flwr 0.1.0 (now 0.2.0)", "flwr 2.0 (now 1.41.0)"]
    assert other_major_versions({**other, "continued": [same]}) == []


def test_a_run_from_elsewhere_does_not_say_where_models_are_written(settings, tmp_path):
    """Its models-dir may be a folder of this machine with models in use."""
    own = {**settings, "num-server-rounds": 1, "models-dir": str(tmp_path / "in use")}
    run = fedkd_flwr.run(own, output_dir=tmp_path / "run")
    assert fedkd_flwr.resume(run.path, num_server_rounds=2).finished
    moved = run.path.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"has been moved.*-c models-dir=FOLDER"):
        fedkd_flwr.resume(moved, num_server_rounds=3)
    resumed = fedkd_flwr.resume(moved, num_server_rounds=3, models_dir=str(tmp_path / "models"))
    assert resumed.finished
    assert (tmp_path / "models" / "0.safetensors").exists()
