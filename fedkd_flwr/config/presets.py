"""Presets and sweeps that ship with the project, found by name.

A name is a path below ``conf`` with or without its ending: ``kt-pfl/cifar10-two-groups``. A sweep
needs no folder: ``digits-quick``.
"""

import difflib
from pathlib import Path

from fedkd_flwr.config.suggestions import either

SWEEPS = "sweeps"
"""Folder of the sweeps below the presets."""

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_folder() -> Path:
    """Return the folder of presets, in the installed package or in a checkout."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"


def preset_names() -> list[str]:
    """Return the names of the presets without the sweeps."""
    return [name for name in _names() if not name.startswith(f"{SWEEPS}/")]


def sweep_names() -> list[str]:
    """Return the names of the sweeps."""
    return [name.removeprefix(f"{SWEEPS}/") for name in _names() if name.startswith(f"{SWEEPS}/")]


def find_preset(name: str | Path) -> Path | None:
    """Return the file of a preset, or None.

    Parameters
    ----------
    name : str or Path
        A file, which has priority, or the name of a shipped preset.
    """
    return _find(name, shipped_folder())


def find_sweep(name: str | Path) -> Path | None:
    """Return the file of a sweep, or None; see `find_preset`."""
    return _find(name, shipped_folder() / SWEEPS) or find_preset(name)


def close_names(name: str | Path, known: list[str]) -> str:
    """Return a clause that suggests similar names, or how to list all names."""
    close = difflib.get_close_matches(str(name).removesuffix(".toml"), known, n=3)
    return f"did you mean {either(close)}?" if close else "`fedkd list presets` shows them."


def _find(name: str | Path, folder: Path) -> Path | None:
    path = Path(name)
    try:
        if path.is_file():
            return path
        return _shipped(path, folder)
    except (OSError, ValueError):  # not a valid path
        return None


def _shipped(path: Path, folder: Path) -> Path | None:
    inside = Path(*path.parts[1:]) if path.parts[:1] == ("conf",) else path
    shipped = folder / inside.with_name(f"{inside.name.removesuffix('.toml')}.toml")
    is_below = folder in shipped.resolve().parents
    return shipped if is_below and shipped.is_file() else None


def _names() -> list[str]:
    folder = shipped_folder()
    files = sorted(folder.glob("*/*.toml"))
    return [file.relative_to(folder).with_suffix("").as_posix() for file in files]
