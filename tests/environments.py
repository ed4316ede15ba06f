"""New environments: all packages but this one are those of the tests, so none is downloaded."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def output_of(command, folder, env, shell=False):
    done = subprocess.run(
        command, shell=shell, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def new_environment(folder, *package):
    """Create an environment, install one package as `uv pip install` is told to, return its Python.

    Its byte code is that of the test environment; compiling all of PyTorch takes half a minute.
    """
    uv = shutil.which("uv")
    assert uv, "pip install uv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *package]
    subprocess.run(install, check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    # The editable installation of the project is not read: .pth files of other folders are not.
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return python
