"""Runs that are continued from an earlier round, and attempts that fail."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.cli import app
from fedkd_flwr.config import ConfigError
from fedkd_flwr.grids.in_process import InProcessGrid
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


@pytest.mark.parametrize("from_round", [0, 3])
def test_a_failed_attempt_to_continue_changes_nothing(from_round, settings, tmp_path, monkeypatch):
    settings["keep-rounds"] = 3
    run = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    before = contents(run.path)

    def fails(*_, **__):
        raise OutOfOrderError

    with monkeypatch.context() as patch:
        patch.setattr(InProcessGrid, "send_and_receive", fails)
        with pytest.raises(OutOfOrderError):
            fedkd_flwr.resume(run.path, num_server_rounds=5, from_round=from_round)
    assert contents(run.path) == before
    assert load_run(run.path).finished
    resumed = fedkd_flwr.resume(run.path, num_server_rounds=5, from_round=from_round)
    assert list(resumed.rounds["round"]) == [1, 2, 3, 4, 5]
    assert resumed.config["num-server-rounds"] == 5


def test_a_run_continues_from_an_earlier_round(settings, tmp_path, monkeypatch):
    """A round that spoiled the models is dropped, and the others equal those of a clean run."""
    settings["keep-rounds"] = 3
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    mended = fedkd_flwr.run(settings, output_dir=tmp_path / "run")
    spoiled = [json.loads(line) for line in (mended.path / "rounds.jsonl").open()]
    with pytest.raises(
        ConfigError, match=r"no checkpoint of round 1, only of 2, 3, 4; keep-rounds"
    ):
        fedkd_flwr.resume(mended.path, from_round=1)
    mended = fedkd_flwr.resume(mended.path, from_round=2)
    assert list(mended.rounds["round"]) == [1, 2, 3, 4]
    assert list(mended.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])
    assert len(mended.clients) == len(whole.clients)
    np.testing.assert_array_equal(mended.matrices["coefficients"], whole.matrices["coefficients"])
    assert mended.description["continued"][0]["after_round"] == 2
    # The first two rounds are the old lines, the others were computed again.
    rows = [json.loads(line) for line in (mended.path / "rounds.jsonl").open()]
    assert rows[:2] == spoiled[:2]
    assert rows[2:] != spoiled[2:]
    kept = sorted(path.name for path in (mended.path / "checkpoint").glob("server*"))
    assert kept == ["server-000002.safetensors", "server-000003.safetensors", "server.safetensors"]


def test_the_round_before_the_last_is_kept_during_a_run(settings, tmp_path):
    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fedkd_flwr.run(settings, output_dir=tmp_path / "run", on_round=stop)
    resumed = fedkd_flwr.resume(tmp_path / "run", from_round=2)
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])


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
    with pytest.raises(RunDirectoryError, match=rf"{name} 7.1.2 \(now .*other-versions=true"):
        fedkd_flwr.resume(run.path, num_server_rounds=2)
    assert fedkd_flwr.resume(run.path, num_server_rounds=2, other_versions=True).finished
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


def test_from_round_alone_is_refused():
    result = CliRunner().invoke(app, ["run", "--from-round", "2"])
    assert result.exit_code == 1
    assert "--from-round needs --resume RUN" in result.output


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
