"""Settings from where users write them: presets and other TOML files, and ``KEY=VALUE``."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.config import ConfigError, RunConfig, method_tables, read_config
from fedkd_flwr.flat import Scalar, flatten
from fedkd_flwr.presets import close_names, find_preset, find_sweep, preset_names
from strategies.core.slices import Slice


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a preset: a TOML file with the keys that differ from the defaults.

    Parameters
    ----------
    path : str or Path
        The file, or the name of a preset that comes with the project.

    Raises
    ------
    ConfigError
        If there is no such preset, it is not TOML, or it is a sweep.
    """
    file = find_preset(path) or find_sweep(path)
    if file is None:
        raise ConfigError(f"There is no preset {path}; {close_names(path, preset_names())}")
    content = load_toml(file, "preset")
    if "grid" in content:
        raise ConfigError(
            f"{path} is a sweep, not a preset: it has [grid]. Type: fedkd sweep {path}"
        )
    return flatten(content)


def upon_preset(path: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings on top of a preset, without what it says to a method that is not run.

    Parameters
    ----------
    path : str or Path
        As `read_toml` takes it.
    settings : mapping
        A flat run config, which goes before the preset.

    Raises
    ------
    ConfigError
        If there is no such preset.
    """
    values = {**read_toml(path), **settings}
    try:
        unread = set(read_config(values).unread) - settings.keys()
    except ConfigError:
        # Whoever uses them as a whole run config says what is wrong; a resumed run need not.
        return values
    return {key: value for key, value in values.items() if key not in unread}


def load_toml(path: Path, name: str) -> dict[str, Any]:
    """Read any TOML file, with or without a byte order mark.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        What to call it in the error.

    Raises
    ------
    ConfigError
        If it cannot be read, or is no TOML in UTF-8.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"The {name} {path} is not in UTF-8: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The {name} {path} is no valid TOML: {error}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"The {name} {path} cannot be read: {reason}.") from None


def parse_assignment(text: str) -> tuple[str, Scalar]:
    """Read one ``KEY=VALUE``; a value that is no TOML value is taken as a word.

    Settings that are text keep it as it is written, but for quotes around it.

    Raises
    ------
    ConfigError
        If there is no ``=`` or no name before it.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r} is no setting; write KEY=VALUE, such as seed=1.")
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
    """Return the settings that are text, or texts separated by commas."""
    kinds: list[type[Slice]] = [RunConfig, *method_tables().values()]
    return frozenset(key for kind in kinds for key in _text_keys_of(kind))


def _text_keys_of(kind: type[Slice]) -> list[str]:
    texts = [
        kind.key_of(name)
        for name, field in kind.model_fields.items()
        if field.annotation in (str, tuple[str, ...])
    ]
    return [*texts, *(key for part in kind.slices().values() for key in _text_keys_of(part))]
