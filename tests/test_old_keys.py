"""Keys that earlier versions had: runs that recorded them, and new configs that name them."""

import json
import shutil
from pathlib import Path

import pytest
from helpers import stopped
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.cli import app
from fedkd_flwr.clients import remembered
from fedkd_flwr.config import ConfigError, current_config, known_names, lost_keys, read_config
from fedkd_flwr.config.suggestions import OLD_KEYS, OldKey
from fedkd_flwr.runs import RunDirectoryError, load_run, recorded_config

RECORDED = Path(__file__).parent / "old_runs" / "config-0.1.0.json"
"""The ``config.json`` of a run of KT-pFL that version 0.1.0 has written, with other folders."""


@pytest.fixture
def old():
    """The recorded ``config.json``."""
    return json.loads(RECORDED.read_text())


@pytest.fixture
def settings(old):
    """The settings of the recorded run in keys of this version."""
    known = {key: v for key, v in current_config(old["config"]).items() if key in known_names()}
    return {key: v for key, v in known.items() if not key.endswith("-dir")}


def as_old(path, old, **config):
    """Let a run directory of this version have the description of the old run."""
    file = path / "config.json"
    now = json.loads(file.read_text())
    folders = {key: now["config"][key] for key in ("output-dir", "state-dir")}
    described = {**old, "id": now["id"], "config": {**old["config"], **folders, **config}}
    file.write_text(json.dumps(described))


def test_no_old_key_is_a_key_of_this_version():
    assert not OLD_KEYS.keys() & {*known_names()}
    assert {old.new for old in OLD_KEYS.values() if old.new} <= {*known_names()}


def test_every_key_of_the_old_run_is_known_or_in_the_table(old):
    unknown = old["config"].keys() - {*known_names()}
    assert unknown == OLD_KEYS.keys()
    old["config"]["kt-pfl.public-batch-size"] = 17
    current = read_config(current_config(old["config"]))
    assert current.run.strategy == "kt-pfl"
    assert current.flat()["kt-pfl.coefficient-batch-size"] == 17


@pytest.mark.parametrize("option", [{}, {"num_server_rounds": 5}])
def test_an_old_run_continues_with_the_numbers_of_one_go(
    option, old, settings, tmp_path, monkeypatch
):
    rounds = option.get("num_server_rounds", 4)
    whole = fedkd_flwr.run(settings, output_dir=tmp_path / "whole", num_server_rounds=rounds)
    with monkeypatch.context() as patch:
        # Clients of another version note other digests of the same settings in their memories.
        patch.setattr(remembered, "owner_of_memory", lambda *_: {"0": 1.0})
        stopped(settings, tmp_path / "run", last_round=2)
    as_old(tmp_path / "run", old)
    resumed = fedkd_flwr.resume(tmp_path / "run", accept_changes=True, **option)
    assert list(resumed.rounds["loss_mean"]) == list(whole.rounds["loss_mean"])
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert not OLD_KEYS.keys() & config.keys()


def test_an_old_finished_run_is_read_and_compared(old, settings, tmp_path):
    short = {**settings, "num-server-rounds": 2}
    for strategy in ("local", "kt-pfl"):
        fedkd_flwr.run(short, output_dir=tmp_path / strategy, strategy=strategy)
    fedkd_flwr.run(short, output_dir=tmp_path / "old", seed=1)
    as_old(tmp_path / "old", old, **{"num-server-rounds": 2, "seed": 1})
    run = load_run(tmp_path / "old")
    assert run.config["accept-changes"] is False and "keep-rounds" not in run.config
    compared = compare(tmp_path)
    assert [run.config["seed"] for run in compared.groups["kt-pfl"]] == [0, 1]
    assert not any("does not have" in note for note in compared.notes)


def test_a_run_with_a_lost_setting_is_shown_but_not_continued(old, settings, tmp_path):
    short = {**settings, "num-server-rounds": 1}
    fedkd_flwr.run(short, output_dir=tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "lost")
    lost = {"kt-pfl.cache-rounds": 2, "ds-fl.cache-rounds": 5, "keep-rounds": 9}
    as_old(tmp_path / "lost", old, **{"num-server-rounds": 1, **lost})
    assert lost_keys(load_run(tmp_path / "lost").config) == {"kt-pfl.cache-rounds": 2}
    assert recorded_config(load_run(tmp_path / "lost")).run.plan.num_server_rounds == 1
    compared = compare(tmp_path)
    assert set(compared.groups) == {"kt-pfl (cache-rounds=-)", "kt-pfl (cache-rounds=2)"}
    (note,) = [note for note in compared.notes if "does not have" in note]
    assert note.startswith("kt-pfl (cache-rounds=2) ran with kt-pfl.cache-rounds = 2, which")
    with pytest.raises(RunDirectoryError, match=r"kt-pfl.cache-rounds = 2, which .* start a new"):
        fedkd_flwr.resume(tmp_path / "lost", num_server_rounds=2, accept_changes=True)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ({"a.old": 1, "kt-pfl.old": 2, "c.old": 3}, {"one.new": 2}),
        ({"kt-pfl.old": 2, "one.new": 4}, {"one.new": 4}),
        ({"a.old": 1}, {}),
    ],
)
def test_of_tables_that_became_one_that_of_the_method_counts(recorded, found, monkeypatch):
    renamed = {f"{table}.old": OldKey(new="one.new") for table in ("a", "kt-pfl", "c")}
    monkeypatch.setattr("fedkd_flwr.config.suggestions.OLD_KEYS", renamed)
    strategy = {"strategy": "fedmd"}
    assert current_config({**strategy, **recorded}) == {**strategy, **found}
    assert lost_keys({**strategy, **recorded}) == {}


@pytest.mark.parametrize("name", OLD_KEYS)
def test_a_new_config_with_an_old_key_is_refused_in_one_sentence(name):
    with pytest.raises(ConfigError, match=rf"^The key {name} (is now|was removed)") as caught:
        read_config({name: 1})
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    result = CliRunner().invoke(app, ["run", "-c", f"{name}=1"])
    assert result.exit_code == 1
    assert " ".join(result.output.split()) == f"Error: {sentence}"
    with pytest.raises(ConfigError, match=rf"^The key {name} "):
        fedkd_flwr.run(**{name.replace("-", "_") if "." not in name else name: 1})
