"""The built wheel works without the repository: presets, the quick start and a small sweep."""

import os
import shutil
from pathlib import Path

import pytest
from environments import new_environment, output_of

ROOT = Path(__file__).parents[1]
OWN_MODEL = (ROOT / "examples" / "own_model.py").read_text()

ALL_COMMANDS = """
from fedkd_flwr.cli import app
for words in {commands}:
    app(words, standalone_mode=False)
"""
"""One process for several commands, since each would import PyTorch again."""


@pytest.mark.slow
def test_the_quick_start_runs_from_the_wheel(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    output_of([shutil.which("uv"), "build", "--wheel", "--out-dir", tmp_path / "dist"], ROOT, env)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    python = new_environment(tmp_path / "venv", wheel)
    where = "import fedkd_flwr, strategies; print(fedkd_flwr.__file__)"
    assert output_of([python, "-c", where], folder, env).startswith(str(tmp_path / "venv"))
    fedkd = python.with_name("fedkd")
    assert "digits-quick" in output_of([fedkd, "list", "sweeps"], folder, env)

    (folder / "my_network.py").write_text(OWN_MODEL)
    part = ["--only", "seed=0", "--only", "strategy=local", "--only", "strategy=kt-pfl"]
    settings = ["-c", "num-server-rounds=1", "-c", "models=my_network:TinyNet"]
    commands = [
        ["run", "-c", "num-server-rounds=2", "-c", "models=mlp"],
        ["sweep", "digits-quick", *settings, *part, "--output-dir", "mine"],
        ["compare", "mine"],
    ]
    # A program elsewhere, as `fedkd` is: the own model is found in the working directory.
    program = tmp_path / "all_commands.py"
    program.write_text(ALL_COMMANDS.format(commands=commands))
    printed = output_of([python, program], folder, env)
    assert "kt-pfl: accuracy on each client's own test split" in printed
    assert list((folder / "runs").glob("*/summary.json"))
    assert "| kt-pfl |" in printed
