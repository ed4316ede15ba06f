"""The run config: its keys, how it is read and checked, presets and the reference."""

from fedkd_flwr.config.combinations import methods_with
from fedkd_flwr.config.reading import (
    ALL_CONNECTED,
    OWN_SETTINGS,
    Configuration,
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
from fedkd_flwr.config.suggestions import current_config, lost_keys
