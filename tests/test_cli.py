"""What the command line prints, and what it loads."""

import pytest
from typer.testing import CliRunner

import fedkd_flwr
from fedkd_flwr.cli import app


def command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments):
    """Return the one line with which a command is refused."""
    result = command(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_square_brackets_are_printed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text("[base]\nseed = 1\n")
    (tmp_path / "conf" / "kt[red]").mkdir(parents=True)
    (tmp_path / "conf" / "kt[red]" / "a[b].toml").write_text("")
    assert "exp[final] holds no run" in refusal("compare", tmp_path / "exp[final]")
    assert "exp[/final] holds no run" in refusal("genotypes", tmp_path / "exp[" / "final]")
    assert "needs a table [grid]" in refusal("sweep", tmp_path / "sweep.toml")
    assert "conf/kt[red]/a[b].toml" in command("list").stdout
    assert "[base] and [grid]" in command("sweep", "--help").stdout
    node = ["--node-config", 'partition-id=0 data-path="/no[where]"']
    assert "'/no[where]'" in command("doctor", *node, "-c", "models=mlp").stdout


def test_figures_into_an_unwritable_place_cost_one_line_and_not_the_table(small, tmp_path):
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
    [("é".encode("latin-1"), "is not in UTF-8"), (b"[grid\n", "is no valid TOML")],
)
def test_a_file_in_another_encoding_is_refused(content, sentence, tmp_path):
    (tmp_path / "file.toml").write_bytes(b"# " * content.startswith(b"\xe9") + content)
    assert f"file.toml {sentence}" in refusal("run", tmp_path / "file.toml")
    assert f"file.toml {sentence}" in refusal("sweep", tmp_path / "file.toml")
    assert f"file.toml {sentence}" in refusal("doctor", tmp_path / "file.toml")


def test_a_byte_order_mark_is_passed_over(tmp_path):
    (tmp_path / "preset.toml").write_text("strategy = 'nope'\n", encoding="utf-8-sig")
    assert "strategy = 'nope'" in refusal("run", tmp_path / "preset.toml")


def test_more_clients_than_samples_are_refused_at_once():
    line = refusal("run", "-c", "num-clients=100000", "-c", "models=mlp")
    assert "1597 samples are too few for 100000 clients" in line


def test_more_threads_than_any_machine_has_are_refused():
    assert "less than or equal to 1024" in refusal("run", "-c", "torch-threads=100000")


def test_the_in_process_engine_takes_no_federation_config():
    line = refusal("run", "--federation-config", "client-resources-num-gpus=1")
    assert "takes no federation config" in line
