"""The Flower app in a clone of the project, copied without what Flower leaves out.

``flwr run FOLDER`` looks at every file in the folder before it leaves any out. In a clone with a
Python environment these are 90,000 files, which takes several seconds.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from strategies.core import flower

APP_FOLDER = Path(__file__).resolve().parent.parent.parent
"""The folder with pyproject.toml. If the project is installed as a package, it has none."""


def copy_app(folder: Path) -> Path:
    """Copy the files of the app to a folder, and return the folder."""
    files = {path.relative_to(APP_FOLDER).as_posix(): path for path in _files_below(APP_FOLDER)}
    for name in flower.filter_paths_for_publish(files):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[name], copy)
    return folder


def flwr_run_command(folder: Path) -> list[str]:
    """Return the command ``flwr run APP``, with a copy of the app in a temporary folder."""
    return [str(Path(sys.executable).parent / "flwr"), "run", str(copy_app(folder / "app"))]


def _files_below(root: Path) -> Iterator[Path]:
    """Yield all files but those in hidden folders and environments, and links as Flower does."""
    for parent, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(parent, name, "pyvenv.cfg").exists()
        ]
        paths = (Path(parent, name) for name in names)
        yield from (path for path in paths if not path.is_symlink())
