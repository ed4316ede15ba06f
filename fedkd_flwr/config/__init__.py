"""The run config: its keys, how it is read and checked, presets and the reference."""

from fedkd_flwr.config.combinations import methods_with
from fedkd_flwr.config.old_keys import current_config, lost_keys
from fedkd_flwr.config.reading import (
    ALL_CONNECTED,
    OWN_SETTINGS,
    Configuration,
    completed,
    custom_keys,
    default_values,
    known_names,
    named_code,
    read_config,
    read_recorded,
    require_importable,
    settings_types,
    with_own_settings_unpacked,
)
from fedkd_flwr.config.run_config import (
    DATA_KEYS,
    KEYS_WITHOUT_EFFECT,
    ConfigError,
    RunConfig,
    flatten,
)

__all__ = [
    "ALL_CONNECTED",
    "DATA_KEYS",
    "KEYS_WITHOUT_EFFECT",
    "OWN_SETTINGS",
    "ConfigError",
    "Configuration",
    "RunConfig",
    "completed",
    "current_config",
    "custom_keys",
    "default_values",
    "flatten",
    "known_names",
    "lost_keys",
    "methods_with",
    "named_code",
    "read_config",
    "read_recorded",
    "require_importable",
    "settings_types",
    "with_own_settings_unpacked",
]
