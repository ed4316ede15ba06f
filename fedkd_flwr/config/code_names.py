"""The code that a run config names, found without importing or validating it."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedkd_flwr.config.reading import with_own_settings_unpacked
from fedkd_flwr.config.run_config import KEYS_WITHOUT_EFFECT
from fedkd_flwr.custom_objects.importing import is_custom
from fedkd_flwr.data.registry import DATA, is_function


def named_code(run_config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names ``module:object`` in a flat run config, each after the key that holds it.

    Folders and data sets of the hub are no code.

    Raises
    ------
    ConfigError
        If ``own-settings`` cannot be read.
    """
    for key, value in with_own_settings_unpacked(run_config).items():
        if key in KEYS_WITHOUT_EFFECT or ":" not in str(value):
            continue
        is_code = is_function if key in DATA else is_custom
        for text in value if isinstance(value, list | tuple) else [value]:
            for word in map(str.strip, str(text).split(",")):
                if is_code(word):
                    yield key, word
