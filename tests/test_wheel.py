"""The built wheel works without the repository: presets, the quick start and a small sweep."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN_MODEL = (ROOT / "examples" / "own_model.py").read_text()


@pytest.mark.slow
def test_the_quick_start_runs_from_the_wheel(tmp_path):
    """Other packages are those of the test environment, so that nothing is downloaded."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def typed(*command, cwd=folder):
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    uv = shutil.which("uv")
    assert uv, "pip install uv"
    typed(uv, "build", "--wheel", "--out-dir", tmp_path / "dist", cwd=ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    typed(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    typed(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "venv" / "lib" / version / "site-packages"
    # The editable installation of the project is not read: .pth files of other folders are not.
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    found = typed(python, "-c", "import fedkd_flwr, strategies; print(fedkd_flwr.__file__)")
    assert found.startswith(str(site))

    fedkd = python.with_name("fedkd")
    printed = typed(fedkd, "run", "-c", "num-server-rounds=2", "-c", "models=mlp")
    assert "kt-pfl: accuracy on each client's own test split" in printed
    assert list((folder / "runs").glob("*/summary.json"))
    assert "digits-quick" in typed(fedkd, "list", "presets")
    (folder / "my_network.py").write_text(OWN_MODEL)
    part = ["--only", "seed=0", "--only", "strategy=local", "--only", "strategy=kt-pfl"]
    settings = ["-c", "num-server-rounds=1", "-c", "models=my_network:TinyNet"]
    typed(fedkd, "sweep", "digits-quick", *settings, *part, "--output-dir", "mine")
    assert "| kt-pfl |" in typed(fedkd, "compare", "mine")
