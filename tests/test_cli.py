"""What the command line prints, and what it loads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.cli import app
from fedkd_flwr.cli.options import read_choices
from fedkd_flwr.config import known_names
from fedkd_flwr.config.settings_reference import settings_reference
from fedkd_flwr.config.suggestions import COMMON_WORDS, OPTIONS
from fedkd_flwr.config.toml_files import find_preset, find_sweep, read_toml
from fedkd_flwr.engines import simulation

ROOT = Path(__file__).resolve().parents[1]


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments):
    result = command(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_square_brackets_are_printed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text("[base]\nseed = 1\n")
    assert "exp[final] holds no run" in refusal("compare", tmp_path / "exp[final]")
    assert "exp[/final] holds no run" in refusal("genotypes", tmp_path / "exp[" / "final]")
    assert "needs a table [grid]" in refusal("sweep", tmp_path / "sweep.toml")
    assert "There is no preset kt[red]/a[b]" in refusal("run", "kt[red]/a[b]")
    assert "[base] and [grid]" in command("sweep", "--help").stdout
    node = 'partition-id=0 num-partitions=8 data-path="/no[where]" epsilon-budget=inf'
    node = ["--node-config", node]
    assert "'/no[where]'" in command("doctor", *node, "-c", "batch-size=16").stdout


def test_a_run_on_validation_data_says_so(small, tmp_path):
    values = {**small, "strategy": "local", "models": "mlp", "num-server-rounds": 1}
    values |= {"evaluated-split": "validation", "client-split": "60/20/20"}
    values["output-dir"] = tmp_path / "run"
    options = [part for key, value in values.items() for part in ("-c", f"{key}={value}")]
    result = command("run", *options, "--per-client")
    assert result.exit_code == 0, result.output
    assert "local: accuracy on each client's own validation split" in result.stdout
    assert "to validate" in result.stdout and "to test" not in result.stdout


def test_unwritable_figures_still_print_the_table(small, tmp_path):
    (tmp_path / "file").write_text("")
    run = fedkd_flwr.run(
        small, output_dir=tmp_path / "run", strategy="local", models="mlp", num_server_rounds=1
    )
    result = command("compare", run.path, "--figures", tmp_path / "file" / "figures")
    assert result.exit_code == 1
    assert result.stdout.startswith("| method |")
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ") and line.endswith("Not a directory.")
    assert str(tmp_path / "file" / "figures") in line
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("option", ["--output-dir", "-c"])
def test_a_sweep_into_an_unwritable_place_is_refused_before_any_run(option, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "sweep.toml").write_text("[grid]\nseed = [0, 1]\n")
    place = tmp_path / "file" / "runs"
    value = place if option == "--output-dir" else f"models-dir={place}"
    result = command("sweep", tmp_path / "sweep.toml", option, value)
    assert result.exit_code == 1
    assert f"{place} cannot be written: Not a directory" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "sweep.toml"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("é".encode("latin-1"), "is not in UTF-8"), (b"[grid\n", "is not valid TOML")],
)
def test_a_file_in_another_encoding_is_refused(content, sentence, tmp_path):
    (tmp_path / "file.toml").write_bytes(b"# " * content.startswith(b"\xe9") + content)
    assert f"file.toml {sentence}" in refusal("run", tmp_path / "file.toml")
    assert f"file.toml {sentence}" in refusal("sweep", tmp_path / "file.toml")
    assert f"file.toml {sentence}" in refusal("doctor", tmp_path / "file.toml")


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "preset.toml").write_text("strategy = 'nope'\n", encoding="utf-8-sig")
    assert "strategy = 'nope'" in refusal("run", tmp_path / "preset.toml")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--federation-config", "client-resources-num-gpus=1"), "takes no federation config"),
        (("-c", "device=cuda:99"), "device = cuda:99 cannot be used here"),
        (("--engine", "simulation"), "needs a clone of the project"),
    ],
)
def test_a_run_that_its_engine_cannot_start_is_refused_without_a_progress_bar(
    options, reason, tmp_path, monkeypatch
):
    monkeypatch.setattr(simulation, "APP_FOLDER", tmp_path)
    result = command("run", "-c", "models=mlp", *options)
    assert reason in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("page, what", [("cli", "commands"), ("methods",) * 2, ("settings",) * 2])
def test_a_page_of_the_reference_is_what_its_command_prints(page, what):
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    first = f"<!-- generated by `fedkd list {what} > docs/reference/{page}.md`; do not edit -->\n"
    assert text.startswith(first)
    assert text == command("list", what).stdout, first


def test_every_setting_has_a_meaning_its_default_and_its_range():
    settings = {s.key: s for section in settings_reference() for s in section.settings}
    assert [key for key, setting in settings.items() if not setting.meaning] == []
    assert settings["kt-pfl.rho"].default == "0.6"
    assert settings["kt-pfl.rho"].allowed == "a number ≥ 0"
    assert settings["fraction-train"].allowed == "a number > 0 and ≤ 1"
    assert settings["optimizer"].allowed == "sgd, adam, adamw"
    assert "digits" in settings["dataset"].allowed
    assert settings["models"].default == '"mlp,lenet,cnn-persfl,cnn"'


def test_the_settings_of_one_method_and_of_one_without_any():
    of_persfl = command("list", "settings", "persfl").stdout
    assert "persfl.teacher" in of_persfl
    assert "feddf.distillation-steps" in command("list", "settings", "pfeddf").stdout
    assert "learning-rate` | `0.01" in of_persfl and "num-clients" not in of_persfl
    assert "local has no settings of its own" in command("list", "settings", "local").output
    assert "There is no method nope" in refusal("list", "settings", "nope")
    assert "There is no list nope" in refusal("list", "nope")
    custom = command("list", "settings", "examples.own_method:nearest").stdout
    assert "| `nearest.sharpness` | `10.0` |" in custom and "kt-pfl.rho" in custom
    assert "holds no nobody" in refusal("list", "settings", "examples.own_method:nobody")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rounds", "num-server-rounds?"),
        ("lr", "learning-rate?"),
        ("rho", "kt-pfl.rho?"),
        ("clusters", "perfed-ckt.clusters, hypcluster.clusters or fesem.clusters?"),
        ("local_epochs", "local-epochs?"),
        ("persfl.temperature", "persfl.temperatures?"),
        ("fedrep.epochs", "fedrep.head-epochs or local-epochs?"),
        ("ditto.weight", "ditto.personalization-weight?"),
        ("fedprox.weight", "fedprox.mu?"),
        ("fedprox.lr", "learning-rate?"),
        ("fedprox.momentum", "momentum?"),
        ("pfeddf.distillation-steps", "feddf.distillation-steps?"),
    ],
)
def test_a_key_of_the_same_meaning_is_suggested(word, meant):
    assert f"did you mean {meant}" in refusal("run", "-c", f"{word}=3")


def test_suggestions_prefer_the_chosen_method():
    line = refusal("run", "-c", "strategy=fesem", "-c", "models=mlp", "-c", "clusters=2")
    assert "did you mean fesem.clusters?" in line


def test_an_option_that_is_typed_as_a_setting_is_named():
    options = get_command(app).commands["run"].params
    names = {option.opts[0].removeprefix("--") for option in options}
    of_settings = {*known_names(), *COMMON_WORDS, "preset", "-c"}
    assert set(OPTIONS) == names - of_settings
    line = refusal("run", "-c", "save-models=true")
    assert line == (
        "Error: The run config has no key save-models; it is an option of `fedkd run`: type "
        "--save-models.\n"
    )
    assert "type --per-client." in refusal("run", "-c", "per_client=true")


def test_a_choice_given_twice_allows_either_value():
    choices = read_choices(["seed=0", "strategy=local", "seed=1"])
    assert choices == {"seed": [0, 1], "strategy": ["local"]}


def test_presets_and_sweeps_are_found_by_name_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = ROOT / "conf" / "kt-pfl" / "cifar10-two-groups.toml"
    for name in ("kt-pfl/cifar10-two-groups", "conf/kt-pfl/cifar10-two-groups.toml", file):
        assert find_preset(name) == file
    assert find_sweep("digits-quick") == ROOT / "conf" / "sweeps" / "digits-quick.toml"
    assert find_preset("../pyproject") is None
    line = refusal("run", "kt-pfl/cifar10-twogroups")
    assert "did you mean kt-pfl/cifar10-two-groups" in line
    (tmp_path / "kt-pfl").mkdir()
    (tmp_path / "kt-pfl" / "cifar10-two-groups").write_text("seed = 7\n")
    assert read_toml("kt-pfl/cifar10-two-groups") == {"seed": 7}


def test_a_sweep_given_to_run_and_a_preset_given_to_sweep_name_the_other_command(tmp_path):
    line = refusal("run", "digits-quick")
    assert "digits-quick is a sweep, not a preset: it has [grid]." in line
    assert line.endswith(" Type: fedkd sweep digits-quick\n")
    file = ROOT / "conf" / "sweeps" / "digits-quick.toml"
    assert f"Type: fedkd sweep {file}" in refusal("run", file)
    preset = "kt-pfl/cifar10-two-groups"
    line = refusal("sweep", preset)
    assert "is a preset, not a sweep: it has no [grid]. Type: fedkd run " in line
    assert f"{preset}.toml\n" in line


@pytest.mark.parametrize(
    ("setting", "values", "only"),
    [
        ("seed=5", "seed: 0, 1", "seed=0"),
        ("strategy=local", "strategy: kt-pfl, local", "strategy=local"),
    ],
)
def test_seeds_and_methods_of_a_sweep_are_chosen_with_only(setting, values, only, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        "[grid]\nseed = [0, 1]\n"
        "combinations = [{ strategy = 'kt-pfl', kt-pfl.rho = 0.1 }, { strategy = 'local' }]\n"
    )
    line = refusal("sweep", file, "-c", setting, "--output-dir", tmp_path / "runs")
    assert f"{file} lists its own values of {values}." in line
    assert f"Instead of -c {setting}, type --only {only} to do some of its runs" in line
    assert not (tmp_path / "runs").exists()


def test_a_deployment_is_checked_before_flower_starts_it():
    def refused(*options):
        return refusal("run", "--engine", "deployment:silos", *options)

    assert "no key epoch" in refused("-c", "epoch=3")
    assert "must be an absolute path" in refused("-c", "output-dir=runs/first")
    assert "does not accept --per-client, --verbose" in refused("--verbose", "--per-client")
    assert "does not accept --federation-config" in refused(
        "--federation-config", "num-supernodes=4"
    )


def test_doctor_checks_a_run_of_a_federation():
    found = command("doctor", "--node-config", "partition-id=0").stdout
    assert "num-clients = 0 needs num-partitions" in found
    node = "partition-id=1 num-partitions=2"
    found = command("doctor", "-c", "models=mlp", "--node-config", node).stdout
    assert "partition 1 of 2" in found


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_during_imports_prints_nothing(module, tmp_path):
    """The stand-in fails as PyTorch does, which cannot be imported again."""
    (tmp_path / f"{module}.py").write_text(
        "import time\n"
        "print('importing', flush=True)\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    raise RuntimeError('cannot be imported again')\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "fedkd_flwr.cli", "run"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == -signal.SIGINT
