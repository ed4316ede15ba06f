"""Names of code in recorded run configs, which may be somebody else's.

A run config may name code as ``module:object``. Python imports the module when the name is
resolved, and an import runs it. A recorded config is therefore resolved only if the user has named
the code again in this call.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.config import named_code
from fedkd_flwr.custom_objects.importing import OBJECT, is_named
from fedkd_flwr.runs.errors import CodeNotNamedError


def names_of_code(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names ``module:object`` in a flat run config, each with the keys that hold it.

    Names ``object:NAME`` are left out, since they import nothing. Folders and data sets of the hub
    are no code.

    Raises
    ------
    ConfigError
        If the settings of a custom method cannot be read.
    """
    names: dict[str, list[str]] = defaultdict(list)
    for key, name in named_code(config):
        if not name.startswith(f"{OBJECT}:"):
            names[name].append(key)
    return dict(names)


def require_named(path: Path, config: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuse a recorded run config with code that the user has not named.

    Parameters
    ----------
    path : Path
        The run directory.
    config : mapping
        Its flat run config.
    given : collection of str
        What the user has named.

    Raises
    ------
    CodeNotNamedError
        With the names, and what to type. Nothing has been imported.
    """
    names = names_of_code(config)
    others = [name for name in names if not is_named(name, given)]
    if not others:
        return
    named = ", ".join(f"{key} = {name}" for name in others for key in names[name])
    packages = dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in others)
    typed = " ".join(f"--allow-code {package}" for package in packages)
    raise CodeNotNamedError(
        f"{path} names code ({named}), and a run directory may come from somebody else: to let it "
        f"run on this machine, type {typed}, or in Python allow_code={list(packages)}."
    )
