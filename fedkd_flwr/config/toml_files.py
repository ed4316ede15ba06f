"""Read settings from presets, other TOML files and ``KEY=VALUE`` assignments."""

import difflib
import functools
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.config import ConfigError, RunConfig, read_config, settings_types
from fedkd_flwr.config.run_config import Scalar, flatten
from fedkd_flwr.config.suggestions import either
from strategies.core.settings_groups import SettingsGroup


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a preset: a TOML file with the keys that differ from the defaults."""
    file = find_preset(path) or find_sweep(path)
    if file is None:
        raise ConfigError(f"There is no preset {path}; {close_names(path, preset_names())}")
    content = load_toml(file, "preset")
    if "grid" in content:
        raise ConfigError(
            f"{path} is a sweep, not a preset: it has [grid]. Type: fedkd sweep {path}"
        )
    return flatten(content)


def keys_of_own(path: str | Path) -> Collection[str]:
    """Return the keys of a preset; none for one that comes with the project."""
    file = find_preset(path)
    is_shipped = file is not None and shipped_folder() in file.resolve().parents
    return () if is_shipped else read_toml(path).keys()


def upon_preset(path: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings on top of a preset, without its settings of other methods."""
    values = {**read_toml(path), **settings}
    try:
        unread = set(read_config(values).unread) - settings.keys()
    except ConfigError:
        # The caller reports the error when it reads the whole run config.
        return values
    return {key: value for key, value in values.items() if key not in unread}


def load_toml(path: Path, name: str) -> dict[str, Any]:
    """Read a TOML file, with or without a byte order mark."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"The {name} {path} is not in UTF-8: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The {name} {path} is not valid TOML: {error}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"The {name} {path} cannot be read: {reason}.") from None


def parse_assignment(text: str) -> tuple[str, Scalar]:
    """Parse one ``KEY=VALUE``; what is not TOML, or is for a text setting, is taken as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is not a setting; write KEY=VALUE, such as seed=1.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
    if isinstance(parsed, str):
        return name, parsed
    if not isinstance(parsed, bool | int | float) or name in _text_keys():
        return name, value
    return name, parsed


@functools.cache
def _text_keys() -> frozenset[str]:
    """Return the keys of text settings, including lists separated by commas."""
    kinds: list[type[SettingsGroup]] = [RunConfig, *settings_types()]
    fields = {key: field for kind in kinds for key, field in kind.fields_by_key().items()}
    return frozenset(k for k, field in fields.items() if field.annotation in (str, tuple[str, ...]))


SWEEPS = "sweeps"  # folder of the sweeps below the presets

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
    """Return the file of a preset, or None; a file has priority over a shipped preset."""
    return _find(name, shipped_folder())


def find_sweep(name: str | Path) -> Path | None:
    """Return the file of a sweep, or None; see `find_preset`."""
    return _find(name, shipped_folder() / SWEEPS) or find_preset(name)


def close_names(name: str | Path, known: list[str], what: str = "presets") -> str:
    """Return a clause that suggests similar names, or how to list all names."""
    close = difflib.get_close_matches(str(name).removesuffix(".toml"), known, n=3)
    return f"did you mean {either(close)}?" if close else f"`fedkd list {what}` shows them."


def _find(name: str | Path, folder: Path) -> Path | None:
    path = Path(name)
    inside = Path(*path.parts[1:]) if path.parts[:1] == ("conf",) else path
    try:
        if path.is_file():
            return path
        shipped = folder / inside.with_name(f"{inside.name.removesuffix('.toml')}.toml")
        is_below = folder in shipped.resolve().parents
        return shipped if is_below and shipped.is_file() else None
    except (OSError, ValueError):  # not a valid path
        return None


def _names() -> list[str]:
    folder = shipped_folder()
    files = sorted(folder.glob("*/*.toml"))
    return [file.relative_to(folder).with_suffix("").as_posix() for file in files]
