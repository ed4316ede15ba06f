"""What a run config may hold, in which words it is refused, and keys of earlier versions."""

import json
import re
import shutil
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from helpers import pyproject_config, stopped
from rich.console import Console
from test_cli import refusal
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.cli import app, output
from fedkd_flwr.clients import remembered
from fedkd_flwr.config import (
    ALL_CONNECTED,
    ConfigError,
    current_config,
    known_names,
    lost_keys,
    read_config,
)
from fedkd_flwr.config.settings_reference import settings_reference
from fedkd_flwr.config.suggestions import OLD_KEYS, OldKey
from fedkd_flwr.config.toml_files import parse_assignment, read_toml, upon_preset
from fedkd_flwr.data.partitioners import partition_indices
from fedkd_flwr.data.registry import PARTITIONS
from fedkd_flwr.data.settings import SPLITS_THAT_READ, DataSettings
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models.genotype import OPERATIONS, SMALL, STANDARD
from fedkd_flwr.runs import RunDirectoryError, load_run, recorded_config
from strategies.core.method_record import FAMILIES
from strategies.core.settings_groups import kebab_case

ROOT = Path(__file__).parent.parent
PRESETS = sorted(path for path in ROOT.glob("conf/*/*.toml") if path.parent.name != "sweeps")


def test_pyproject_holds_every_key_with_its_default():
    """Flower refuses overrides of keys that pyproject does not have."""
    assert set(pyproject_config()) == set(known_names())
    assert read_config(pyproject_config()) == read_config(ALL_CONNECTED)
    assert read_config({}).run.plan.num_clients == 8


def test_numbers_are_accepted_as_text_and_booleans_are_not():
    texts = ("image-shape=13", "output-dir=2026", "persfl.temperatures=5", "persfl.imitation=0.5")
    flat = read_config(dict(map(parse_assignment, texts))).flat()
    assert flat["image-shape"] == "13" and flat["output-dir"] == "2026"
    assert flat["persfl.temperatures"] == "5.0" and flat["persfl.imitation"] == "0.5"
    for key in ("image-shape", "output-dir", "models", "persfl.imitation"):
        with pytest.raises(ConfigError, match=f"{key} = True: it should be text, not true or"):
            read_config({"strategy": "persfl", key: True})
    for key in ("num-clients", "learning-rate", "persfl.validate-every"):
        with pytest.raises(ConfigError, match=f"{key} = True: it should be a number, not true or"):
            read_config({"strategy": "persfl", key: True})
    with pytest.raises(ConfigError, match=r"seed = 1\.5"):
        read_config({"seed": 1.5})


def supernet_of(**settings):
    return read_config(settings).run.models.search_space


def test_the_supernet_is_small_on_digits_alone():
    assert supernet_of(models="darts") == SMALL
    assert supernet_of(models="darts", dataset="mnist") == STANDARD
    assert supernet_of(models="darts-fixed") == STANDARD
    # Keys that are set hold.
    wider = supernet_of(models="darts", **{"supernet-channels": 12, "supernet-nodes": 3})
    assert wider == replace(SMALL, channels=12, nodes=3)
    every = supernet_of(models="darts", **{"supernet-operations": ",".join(OPERATIONS)})
    assert every == replace(SMALL, operations=OPERATIONS)


def test_a_run_records_the_size_of_its_supernet():
    small, standard = (read_config({"models": m}).flat() for m in ("darts", "mlp"))
    keys = [f"supernet-{name}" for name in ("channels", "cells", "nodes", "stem-stride")]
    assert [small[key] for key in keys] == [8, 3, 2, 2]
    # Runs of other models are those that were recorded before.
    assert [standard[key] for key in keys] == [16, 8, 4, 1]
    assert standard["supernet-operations"] == ""
    assert read_config(small).flat() == small


def test_a_path_object_is_accepted_as_a_folder(small, tmp_path):
    folders = {"output_dir": tmp_path / "run", "models_dir": tmp_path / "models"}
    run = fedkd_flwr.run({**small, "data-root": tmp_path, "strategy": "local"}, **folders)
    assert [run.config[key] for key in ("models-dir", "data-root")] == [
        str(tmp_path / "models"),
        str(tmp_path),
    ]
    assert list((tmp_path / "models").glob("*.safetensors"))


def test_a_setting_in_two_spellings_is_refused(small, tmp_path):
    twice = {"learning-rate": 0.1, "learning_rate": 0.2}
    sentence = "learning_rate and learning-rate are one setting, and both are set"
    with pytest.raises(ConfigError, match=sentence):
        fedkd_flwr.run({**small, **twice})
    with pytest.raises(ConfigError, match=sentence):
        fedkd_flwr.sweep({**small, **twice}, {"seed": [0]}, output_dir=tmp_path)
    in_table = {"kt-pfl": {"rho": 0.1}, "kt_pfl.rho": 0.2}
    with pytest.raises(ConfigError, match=r"kt-pfl\.rho is set twice, in a table and by its whole"):
        fedkd_flwr.run({**small, **in_table})


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_preset_is_valid_and_holds_only_differences(preset):
    values = read_toml(preset)
    read_config(values)
    defaults = read_config({}).flat()
    assert [name for name, value in values.items() if value == defaults[name]] == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"strategy": "nope"}, "strategy = 'nope': 'nope' is not one of kt-pfl"),
        ({"strategy": "ktpfl"}, r"^strategy = 'ktpfl': 'ktpfl' is unknown; did you mean kt-pfl\?$"),
        ({"strategy": "Fed_Avg"}, r"did you mean fedavg\?$"),
        ({"models": "mlp,lenett"}, r"is unknown; did you mean lenet\?$"),
        ({"dataset": "fashion_mnist"}, r"is unknown; did you mean fashion-mnist\?$"),
        ({"models": "lenet,nope"}, "^models = 'lenet,nope': 'nope' is not one of lenet"),
        ({"dataset": "nope"}, "dataset = 'nope': 'nope' is not one of digits"),
        ({"partition": "nope"}, "partition = 'nope': 'nope' is not one of iid"),
        (
            {"partition": "dirichelt"},
            r"^partition = 'dirichelt': 'dirichelt' is unknown; did you mean dirichlet\?$",
        ),
        ({"kt-pfl.temperature": 0}, "kt-pfl.temperature = 0: it should be greater than 0"),
        ({"kt-pfl.rho": -1}, "kt-pfl.rho = -1: it should be greater than or equal to 0"),
        ({"learning-rate": "fast"}, "learning-rate = 'fast'"),
        ({"fraction-train": 0}, "fraction-train = 0: it should be greater than 0"),
        (
            {"fraction-train": 0.05},
            "fraction-train = 0.05 of 8 clients is less than one .* at least 0.125",
        ),
        ({"fraction-train": 1.5}, "fraction-train = 1.5: it should be less than or equal to 1"),
        ({"loca-epochs": 3}, "no key loca-epochs; did you mean local-epochs"),
        ({"kt-pfl.temprature": 3}, "no key kt-pfl.temprature; did you mean kt-pfl.temperature"),
        ({"nope.rho": 3}, "no key nope.rho"),
        ({"strategy": "fednas"}, r"set models to one, such as -c models=darts\.$"),
        (
            {"strategy": "persfl", "models": "mlp", "client-split": "60/0.0|20/20"},
            "persfl needs validation data",
        ),
        ({"learning-rate": float("inf")}, "learning-rate = inf"),
        (
            {"min-replies": 9},
            r"min-replies = 9 is more than the clients sampled in a round \(8\); set it to at most "
            "8, or a larger fraction-train",
        ),
        ({"device": "tpu"}, "device = 'tpu': it should be auto, cpu, cuda or cuda:N"),
        ({"image-shape": "3x32"}, "image-shape = '3x32': it should be numbers above 0, such as 3"),
        ({"precision": "fp8"}, "precision"),
        ({"torch-threads": 100000}, "less than or equal to 1024"),
        ({"tracker": "tensorbord"}, "did you mean tensorboard"),
        ({"models": 3}, "models = 3: '3' is not one of lenet"),
        ({"models": "darts", "supernet-cells": 2}, "cells must be from 3 to 100, got 2"),
        ({"models": "darts", "supernet-operations": "none,conv_9"}, "unknown operation 'conv_9'"),
        ({"optimizer": "lion"}, "optimizer = 'lion': it should be 'sgd', 'adam' or 'adamw'"),
        ({"learning-rate-schedule": "up"}, "schedule = 'up'.*'constant', 'cosine' or 'step'"),
    ],
)
def test_refusals_are_one_clear_sentence(values, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_config(values)
    assert "\n" not in str(caught.value)


def test_settings_that_the_method_never_reads_are_named_in_one_line():
    fedavg = {"strategy": "fedavg", "models": "mlp"}
    set_in_vain = read_config(
        {**fedavg, "soft-predictions.clip-norm": 2.0, "persfl.teacher": "last"}
    )
    (warning,) = set_in_vain.warnings
    assert warning == "fedavg does not read persfl.teacher, soft-predictions.clip-norm: ignored."
    # Clients read the flat config, in which every key is named.
    assert read_config(set_in_vain.flat()).warnings == [warning]
    assert read_config({**fedavg, "soft-predictions.clip-norm": 0.0}).warnings == []
    fedmd = {"strategy": "fedmd", "soft-predictions.clip-norm": 2.0}
    assert read_config(fedmd).warnings == []
    assert read_config({**fedmd, "kt-pfl.rho": 0.1}).warnings == [
        "fedmd does not read kt-pfl.rho: ignored."
    ]


@pytest.mark.parametrize(
    ("partition", "unread"),
    [
        ({"partition": "iid", "alpha": 0.1}, "partition = iid does not read alpha: ignored."),
        ({"classes-per-client": 2}, ""),
        ({"partition": "dirichlet", "minimum-size": 5, "alpha": 0.1}, ""),
        (
            {"partition": "k-classes", "groups": 3, "size-sigma": 1.0},
            "partition = k-classes does not read size-sigma, groups: ignored.",
        ),
    ],
)
def test_settings_of_another_split_are_named(partition, unread):
    configuration = read_config(partition)
    assert configuration.ignored(partition) == ([unread] if unread else [])
    assert configuration.ignored([]) == []


def test_a_run_names_settings_of_another_split_that_the_user_has_set(small, logged, tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text("partition = 'iid'\nalpha = 0.1\n")
    told = "partition = iid does not read alpha: ignored."
    small = {k: v for k, v in small.items() if k not in ("partition", "classes-per-client")}
    fedkd_flwr.run(preset, strategy="local", **small, output_dir=tmp_path / "run")
    assert logged()[0] == told
    typed = [f"{key}={value}" for key, value in {**small, "strategy": "local"}.items()]
    arguments = ["run", str(preset), *chain(*(("-c", text) for text in typed))]
    result = CliRunner().invoke(app, [*arguments, "--output-dir", str(tmp_path / "again")])
    assert result.exit_code == 0
    assert told in " ".join(result.stderr.split())


class Recording:
    """Settings that note which of them are read."""

    def __init__(self, settings):
        self.settings, self.read = settings, set()

    def __getattr__(self, name):
        self.read.add(kebab_case(name))
        return getattr(self.settings, name)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_split_reads_the_settings_that_are_said_to_be_its_own(partition):
    recording = Recording(DataSettings(partition=partition))
    partition_indices(np.tile(np.arange(10), 1000), recording, 20, 0)
    own = {key for key, splits in SPLITS_THAT_READ.items() if partition in splits}
    assert recording.read & SPLITS_THAT_READ.keys() == own


def test_columns_that_a_built_in_data_set_does_not_read_are_named():
    coarse = {"dataset": "cifar100", "label-column": "coarse_label", "image-shape": "3,8,8"}
    assert read_config(coarse).warnings == [
        "cifar100 does not read label-column, image-shape: ignored."
    ]
    public = {"public-dataset": "hf:some/photos", "image-column": "photo"}
    assert read_config(public).warnings == []


def test_settings_of_another_method_in_a_preset_give_no_warning():
    preset = "fedkma/digits-small"
    assert read_toml(preset)["fedkma.alpha-optimizer"] == "adam"
    values = upon_preset(preset, {"strategy": "local", "fedkma.sharpness": 2.0})
    assert read_config(values).warnings == ["local does not read fedkma.sharpness: ignored."]
    assert upon_preset(preset, {})["fedkma.alpha-optimizer"] == "adam"
    assert values["num-clients"] == read_toml(preset)["num-clients"]


def test_no_two_settings_have_the_same_description():
    settings = [setting for section in settings_reference() for setting in section.settings]
    assert [setting.key for setting in settings] == list(dict.fromkeys(s.key for s in settings))
    assert {setting.key for setting in settings} == set(known_names())
    keys = defaultdict(list)
    for setting in settings:
        keys[setting.meaning].append(setting.key)
    assert {meaning: same for meaning, same in keys.items() if len(same) > 1} == {}


def test_assignments_are_toml_values_or_words():
    assert parse_assignment("seed=3") == ("seed", 3)
    assert parse_assignment("alpha=0.5") == ("alpha", 0.5)
    assert parse_assignment("resume=true") == ("resume", True)
    assert parse_assignment("strategy=local") == ("strategy", "local")
    assert parse_assignment("data-root=/some/where") == ("data-root", "/some/where")
    assert parse_assignment('models="mlp,lenet"') == ("models", "mlp,lenet")
    for text in ("seed", "=3"):
        with pytest.raises(ConfigError, match="write KEY=VALUE"):
            parse_assignment(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("output-dir", "2026_11_21"),
        ("output-dir", "1.10"),
        ("models-dir", "0o17"),
        ("data-root", "1e3"),
        ("state-dir", "true"),
        ("public-hash", "12e4567"),
        ("measures", "1_0"),
    ],
)
def test_a_text_stays_as_it_is_written(key, value):
    assert parse_assignment(f"{key}={value}") == (key, value)
    assert parse_assignment(f'{key}="{value}"') == (key, value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-c", "strategy=nope"], "is not one of"),
        (["nowhere.toml"], "There is no preset nowhere.toml"),
        (["-c", "num-clients=100000"], "1597 samples are too few for 100000 clients; set fewer"),
        (["-c", "client-split=50/50/50"], "client-split"),
        (["--engine", "abacus"], "is not one of in-process, simulation"),
        (["--engine", "sim"], "did you mean simulation?"),
        (["-c", "output-dir=/proc/nowhere/run"], "cannot be written"),
    ],
)
def test_the_command_line_refuses_in_one_line_and_writes_nothing(
    arguments, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal("run", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_list_groups_methods_and_says_what_they_take(monkeypatch):
    monkeypatch.setattr(output, "console", lambda: Console(width=160))
    printed = CliRunner().invoke(app, ["list"]).stdout
    assert all(
        name in printed for name in ("resnet18", "fashion-mnist", "two-groups", "list sweeps")
    )
    cells = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row[0] in METHODS}
    assert rows.keys() == METHODS.keys()
    for name, method in METHODS.items():
        exchanged, paper, needs = [*rows[name], ""][:3]
        record = method.record
        assert exchanged == record.exchanged
        assert paper == (record.paper.short if record.paper else "baseline")
        assert needs == ", ".join(record.needs)
    # One table a family, in which what belongs together stands together.
    order = [METHODS[name].record.family for name in rows]
    assert [family for n, family in enumerate(order) if order[n - 1 : n] != [family]] == [*FAMILIES]


# ---- Keys of earlier versions --------------------------------------------------------


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
    assert refusal("run", "-c", f"{name}=1") == f"Error: {sentence}\n"
    with pytest.raises(ConfigError, match=rf"^The key {name} "):
        fedkd_flwr.run(**{name.replace("-", "_") if "." not in name else name: 1})
