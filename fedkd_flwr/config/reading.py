"""Read and validate the run config.

A run config is Flower's: flat names in kebab case with numbers, texts and booleans, and a table for
each method (``kt-pfl.rho``). `read_config` converts it to a `Configuration`, or refuses it with one
sentence before any client starts.
"""

import functools
import json
import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedkd_flwr.config.combinations import check_combinations
from fedkd_flwr.config.run_config import (
    KEYS_WITHOUT_EFFECT,
    ConfigError,
    RunConfig,
    Scalar,
    as_scalar,
    flatten,
)
from fedkd_flwr.config.suggestions import OPTIONS, either, readable_config, replacement, suggestions
from fedkd_flwr.custom_objects.importing import is_custom, is_of_this_process
from fedkd_flwr.data.registry import BY_COLUMN, CLIENTS, DATA, is_function
from fedkd_flwr.methods import METHODS, REGISTERED, Method, find_method
from strategies.core.plan import Settings
from strategies.core.settings_groups import SettingsGroup, first_refused, kebab_case
from strategies.parameters import SharedModelSettings

Part = TypeVar("Part", bound=SettingsGroup)

OWN_SETTINGS = "own-settings"
"""Key for the settings of a custom method, since Flower accepts no further keys."""

ALL_CONNECTED = {"num-clients": 0, "record-answers": False}
"""Defaults of a deployment: each node that connects is a client; nodes send counts alone."""


class Configuration(BaseModel):
    """A complete run config: the common keys and the settings of all methods."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    run: RunConfig
    of_methods: dict[type[Settings], Any]

    @property
    def settings(self) -> Settings:
        """The settings of the run's method."""
        settings_type = self.run.method.record.settings_type
        return self.of_methods.get(settings_type) or settings_type()

    def resolved(self) -> "Configuration":
        """Return the same with the method's settings filled in that depend on the models."""
        settings = self.settings
        if not isinstance(settings, SharedModelSettings):
            return self
        settings = settings.resolved(self.run.models.models)
        return self.model_copy(update={"of_methods": {**self.of_methods, type(settings): settings}})

    def with_run(self, **changes: Any) -> "Configuration":
        """Return the same with other values of some fields of `run`."""
        return self.model_copy(update={"run": self.run.model_copy(update=changes)})

    def with_clients(self, number: int) -> "Configuration":
        """Return the same with another number of clients."""
        plan = self.run.plan.model_copy(update={"num_clients": number})
        configuration = self.with_run(plan=plan)
        check_combinations(configuration.run, configuration.settings)
        return configuration

    @property
    def unread(self) -> list[str]:
        """The keys that the user has set and this run does not read."""
        own, defaults, data = self.settings.flat_keys(), default_values(), self.run.data
        others = {k: v for k, v in self.flat().items() if "." in k and k not in own}
        keys = [key for key, value in others.items() if value != defaults[key]]
        return [*keys, *(["data-root"] if data.data_root and not data.hub_ids else [])]

    @property
    def warnings(self) -> list[str]:
        """What the user has set and this run ignores, one sentence each."""
        run, unread = self.run, self.unread
        sentences = []
        if of_methods := [key for key in unread if "." in key]:
            sentences.append(f"{run.strategy} does not read {', '.join(of_methods)}: ignored.")
        if run.strategy == "fednas" and any(key.startswith("fedkma.") for key in of_methods):
            sentences.append(
                "fednas is the method of He et al. since version 0.2; for FedKMA with a uniform "
                'mean set strategy = "fedkma-uniform".'
            )
        if "data-root" in unread:
            sentences.append(f"{run.data.dataset} does not read data-root: ignored.")
        if of_data := run.data.unread:
            sentences.append(f"{run.data.dataset} does not read {', '.join(of_data)}: ignored.")
        return sentences

    def ignored(self, given: Collection[str]) -> list[str]:
        """Return one sentence on the keys among some that the partition does not read, if any.

        Presets of the project set some of them for other partitions, so not all keys are meant.
        """
        keys = [key for key in self.run.data.unread_by_split if key in given]
        reader = f"partition = {self.run.data.partition}"
        return [f"{reader} does not read {', '.join(keys)}: ignored."] if keys else []

    def defining(self) -> dict[str, Scalar]:
        """Return the settings that the run's results depend on, sorted by name."""
        own = self.settings.flat_keys()
        return {
            key: value
            for key, value in self.flat().items()
            if key not in KEYS_WITHOUT_EFFECT and ("." not in key or key in own)
        }

    def without_unread(self) -> "Configuration":
        """Return the same run config, with unread keys at their defaults."""
        if not (unread := self.unread):
            return self
        return read_config({key: value for key, value in self.flat().items() if key not in unread})

    def flat(self) -> dict[str, Scalar]:
        """Return the config as Flower's flat run config, complete and sorted by name."""
        values = self.run.flat()
        for settings in self.of_methods.values():
            values |= settings.flat()
        return {name: as_scalar(value) for name, value in sorted(values.items())}

    def for_flower(self) -> dict[str, Scalar]:
        """Return `flat` for Flower, with keys that pyproject.toml lacks in `OWN_SETTINGS`."""
        flat, known = self.flat(), set(known_names())
        own = [f"{key} = {json.dumps(value)}" for key, value in flat.items() if key not in known]
        return {key: flat[key] for key in flat if key in known} | {OWN_SETTINGS: ", ".join(own)}


def settings_types(own: Method | None = None) -> list[type[Settings]]:
    """Return the types of settings of all methods, including that of a custom method."""
    methods = (*METHODS.values(), *([own] if own else []))
    types = dict.fromkeys(method.record.settings_type for method in methods)
    return [kind for kind in types if kind.flat_keys()]


def read_config(flat: Mapping[str, Any]) -> Configuration:
    """Validate a flat run config, with tables joined by dots or nested.

    Raises `ConfigError` on an unknown name, a value out of range or an impossible combination.
    """
    given = with_own_settings_unpacked(flatten(flat))
    flat = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in given.items()}
    by_column = flat.get("client-column") or flat.get("partition") == BY_COLUMN
    if by_column or str(flat.get("dataset", "")).startswith(CLIENTS):
        flat = {"num-clients": 0, **flat}  # the data say which clients there are
    own = _own_method(flat)
    known = known_names(own)
    for name in flat:
        if name not in known:
            raise ConfigError(_unknown(name, flat, known))
    configuration = _configuration(flat, own)
    check_combinations(configuration.run, configuration.settings)
    return configuration


def completed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat run config in which nothing is left open, as `Configuration.flat` has it.

    A custom method is not imported: its own settings stay as they are. Raises `ConfigError` on a
    value out of range, or if ``own-settings`` cannot be read.
    """
    given, known = with_own_settings_unpacked(flat), set(known_names())
    known.difference_update([] if given.get("strategy", "local") in METHODS else ["strategy"])
    read = _configuration({key: value for key, value in given.items() if key in known})
    return read.flat() | {key: value for key, value in given.items() if key not in known}


def _configuration(flat: Mapping[str, Any], own: Method | None = None) -> Configuration:
    """Validate each setting of a flat run config, and fill in those that depend on others."""
    return Configuration(
        run=_read(RunConfig, flat).resolved(),
        of_methods={kind: _read(kind, flat) for kind in settings_types(own)},
    ).resolved()


def read_recorded(flat: Mapping[str, Any]) -> Configuration:
    """Validate the flat run config that a run has recorded, without keys that were removed."""
    return read_config(readable_config(flat, known_names(_own_method(flat))))


@functools.cache
def default_values() -> Mapping[str, Scalar]:
    """Return the flat run config in which nothing is set."""
    return MappingProxyType(read_config({}).flat())


def _own_method(flat: Mapping[str, Any]) -> Method | None:
    name = str(flat.get("strategy", ""))
    if not is_custom(name) and name not in REGISTERED:
        return None
    try:
        return find_method(name)
    except ValueError as error:
        raise ConfigError(_sentence(f"strategy: {error}")) from None


def with_own_settings_unpacked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat run config with the contents of `OWN_SETTINGS` under their own keys."""
    plain = dict(flat)
    text = plain.pop(OWN_SETTINGS, "")
    if text == "":
        return plain
    try:
        own = flatten(tomllib.loads(f"own = {{ {text} }}")["own"])
        json.dumps(own)  # neither dates nor times
    except (tomllib.TOMLDecodeError, RecursionError, TypeError):
        raise ConfigError(
            f"{OWN_SETTINGS} = {text!r}: write it as TOML, such as my-method.mu = 0.1, "
            "my-method.rule = 'mean'."
        ) from None
    if twice := sorted(own.keys() & {*plain, *known_names()}):
        raise ConfigError(f"{OWN_SETTINGS} holds {twice[0]}, which is a key by itself.")
    return {**plain, **own}


def known_names(own: Method | None = None) -> list[str]:
    """Return every key of a run config, including those of a custom method."""
    of_methods = [key for kind in settings_types(own) for key in kind.flat_keys()]
    return [*RunConfig.flat_keys(), OWN_SETTINGS, *dict.fromkeys(of_methods)]


def custom_keys(flat: Mapping[str, Any]) -> set[str]:
    """Return the keys that only the custom method of a run config reads."""
    own = _own_method(flat)
    return {*known_names(own)} - {*known_names()} if own else set()


def _unknown(name: str, flat: Mapping[str, Any], known: Sequence[str]) -> str:
    option = kebab_case(name)
    if sentence := replacement(option):
        return sentence
    if option in OPTIONS:
        return f"The run config has no key {name}; it is an option of `fedkd run`: type --{option}."
    method = METHODS.get(str(flat.get("strategy", RunConfig.model_fields["strategy"].default)))
    own = method.record.settings_type.flat_keys() if method else []
    meant = suggestions(name, known, own)
    hint = f"did you mean {either(meant)}?" if meant else "`fedkd list settings` shows them."
    return f"The run config has no key {name}; {hint}"


def _read(kind: type[Part], flat: Mapping[str, Any]) -> Part:
    """Validate one group or table of a flat run config, including its nested groups."""
    groups = kind.nested_groups()
    values: dict[str, Any] = {name: _read(part, flat) for name, part in groups.items()}
    # Pydantic names fields in errors by their aliases.
    keys = {kebab_case(name): kind.key_of(name) for name in kind.model_fields if name not in groups}
    values |= {name: flat[key] for name, key in keys.items() if key in flat}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        refused = first_refused(error, lambda name: keys.get(name, name))
        raise ConfigError(_sentence(refused)) from None


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def named_code(run_config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names ``module:object`` in a flat run config, each after the key that holds it."""
    for key, value in with_own_settings_unpacked(run_config).items():
        if key in KEYS_WITHOUT_EFFECT or ":" not in str(value):
            continue
        is_code = is_function if key in DATA else is_custom
        for text in value if isinstance(value, list | tuple) else [value]:
            for word in map(str.strip, str(text).split(",")):
                if is_code(word):
                    yield key, word


def require_importable(configuration: Configuration, place: str) -> None:
    """Refuse a method, model, data set or partition that exists in this process alone."""
    if (strategy := configuration.run.strategy) in REGISTERED:
        raise ConfigError(
            f"{strategy} is registered in this process, and {place} other ones: keep what "
            "register returns in a module, and set strategy to module:object."
        )
    for key, value in configuration.flat().items():
        for name in str(value).split(","):
            if is_of_this_process(name):
                raise ConfigError(
                    f"{key} = {name} is an object of this process, and {place} other ones: put "
                    f"it in a module, and set {key} to module:object."
                )
