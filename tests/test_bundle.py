"""The app bundle that Flower builds: what it holds, the limits of Flower Hub, a run from it."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.app_cmd.publish import _validate_description, _validate_files
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import filter_paths_for_publish
from processes import app_folder, new_environment, output_of
from test_engines import assert_same_numbers

import fedkd_flwr
import fedkd_flwr.engines.superlink as superlinks
from fedkd_flwr.engines.superlink import superlink
from fedkd_flwr.runs import load_run

ROOT = Path(__file__).parent.parent
FLWR = Path(sys.executable).parent / "flwr"
MOST_FILES = 800


@pytest.fixture(scope="module")
def files():
    """The project's files as Flower collects them, without walking through environments."""
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(".")]
    paths = [ROOT / ".gitignore", *(path for top in tops for path in (top, *top.rglob("*")))]
    return {str(path.relative_to(ROOT)): path for path in paths if path.is_file()}


@pytest.fixture(scope="module")
def bundle(files):
    content, metadata = build_fab_from_files(files)
    return zipfile.ZipFile(io.BytesIO(content)), metadata


def test_the_bundle_holds_the_app_and_its_documents_alone(bundle):
    parts = {
        "fedkd_flwr": "*.py",
        "strategies": "*.py",
        "examples": "*.py",
        "conf": "*.toml",
        "docs": "*.md",
        "results": "*.md",
    }
    expected = {
        str(path.relative_to(ROOT))
        for folder, pattern in parts.items()
        for path in (ROOT / folder).rglob(pattern)
    }
    expected |= {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        ".info/CONTENT",
    }
    assert set(bundle[0].namelist()) == expected


def test_the_bundle_has_format_version_1(bundle):
    metadata = bundle[1]
    config = tomllib.loads(bundle[0].read("pyproject.toml").decode())
    assert metadata.fab_format_version == 1
    assert metadata.flwr_version_min == "1.42"
    constraints = config["tool"]["uv"]["constraint-dependencies"]
    assert f"flwr=={metadata.flwr_version_target}" in constraints


def test_links_of_the_readme_hold_inside_the_bundle(bundle):
    archive, _ = bundle
    text = archive.read("README.md").decode()
    # Images cannot be in a bundle: Flower takes text alone.
    links = re.findall(r"(?<!!)\[[^]]*\]\((?!https?:|#)([^)#]+)", text)
    assert len(links) > 5
    assert set(links) <= set(archive.namelist())


def test_environments_and_hidden_folders_are_not_copied(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    for name in (
        "pyproject.toml", "package/module.py", ".venv/lib/hidden.py", ".git/config.toml",
        "my-environment/pyvenv.cfg", "my-environment/lib/installed.py", "runs/notes.md",
    ):  # fmt: skip
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("")
    (clone / ".gitignore").write_text("/runs/\n")
    (clone / "linked.py").symlink_to(clone / "package" / "module.py")
    monkeypatch.setattr(superlinks, "APP_FOLDER", clone)
    copy = superlinks.copy_app(tmp_path / "copy")
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert copied == {".gitignore", "pyproject.toml", "package/module.py"}


def test_the_project_is_within_the_limits_of_flower_hub(files, capsys):
    published = filter_paths_for_publish(files)
    _validate_files(list(published.values()))
    assert "Validation passed" in capsys.readouterr().out
    _validate_description(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    )


def test_a_clone_is_small():
    """Flower Hub takes at most 1,000 files of 1 MB; some room is left."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    tracked = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(tracked) <= MOST_FILES
    assert [path for path in tracked if path.stat().st_size > 1_000_000] == []


@pytest.mark.slow
def test_a_run_from_the_bundle_needs_nothing_beside_it(tmp_path):
    """Its prototypes have the numbers of one process."""
    build = [FLWR, "build", "--app", app_folder()]
    subprocess.run(build, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (built,) = tmp_path.glob("*.fab")
    app, home = tmp_path / "app", tmp_path / "home"
    zipfile.ZipFile(built).extractall(app)
    home.mkdir()
    # No number of clients: Flower's default federation has two nodes, and this is a run of them.
    settings = {"strategy": "fedproto", "num-server-rounds": 2, "local-epochs": 1}
    settings |= {"device": "cpu", "torch-threads": 1}
    run_config = {**settings, "output-dir": str(tmp_path / "run")}
    with pytest.MonkeyPatch.context() as patch:
        # Byte code tells from where a module was loaded.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        with superlink(home) as env:
            env = {key: value for key, value in env.items() if key != "PYTHONPATH"}
            run = [FLWR, "run", ".", "--stream", "--run-config"]
            run.append(" ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items()))
            log = subprocess.run(run, cwd=app, env=env, check=True, capture_output=True, text=True)
    assert log.stdout.count("2 clients are connected; the run has 2 clients") == 1
    finished = load_run(tmp_path / "run")
    assert finished.config["num-clients"] == 2
    for loaded in ("fedkd_flwr/server_app", "fedkd_flwr/client_app", "strategies/fedproto"):
        folder, _, name = loaded.rpartition("/")
        assert list(home.glob(f"apps/*/{folder}/__pycache__/{name}.*.pyc"))
    here = fedkd_flwr.run(settings, num_clients=2, output_dir=tmp_path / "here")
    assert_same_numbers(finished, here)


# ---- The wheel -----------------------------------------------------------------------


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

    uv = shutil.which("uv")
    output_of(uv, "build", "--wheel", "--out-dir", tmp_path / "dist", env=env, cwd=ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    python = new_environment(tmp_path / "venv", wheel)
    where = "import fedkd_flwr, strategies; print(fedkd_flwr.__file__)"
    assert output_of(python, "-c", where, env=env, cwd=folder).startswith(str(tmp_path / "venv"))
    fedkd = python.with_name("fedkd")
    assert "digits-quick" in output_of(fedkd, "list", "sweeps", env=env, cwd=folder)

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
    printed = output_of(python, program, env=env, cwd=folder)
    assert "kt-pfl: accuracy on each client's own test split" in printed
    assert list((folder / "runs").glob("*/summary.json"))
    assert "| kt-pfl |" in printed
