"""Sweep files: many runs from one TOML file.

A sweep file has the settings that all runs share in ``[base]``, where ``preset`` may name a
preset by its path from there or one that comes with the project, and in ``[grid]`` a list of
values for each setting that varies. Settings that only go together are tables in the list
``combinations``, which counts as one more setting::

    [base]
    preset = "../kt-pfl/fashion-mnist-two-classes.toml"

    [grid]
    seed = [0, 1, 2]
    combinations = [
        { strategy = "kt-pfl", models = "lenet,alexnet" },
        { strategy = "fedavg", models = "lenet" },
    ]

A file may have several grids, each headed ``[[grid]]``; its runs are those of all of them. A method
ignores settings of other methods, so each of them may be varied for all. Each run has a directory
named after its settings, so that a second call finds it.
"""

import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from fedkd_flwr.config import (
    KEYS_WITHOUT_EFFECT,
    ConfigError,
    Configuration,
    custom_keys,
    default_values,
    read_config,
    with_own_settings_unpacked,
)
from fedkd_flwr.config.run_config import Scalar, flatten
from fedkd_flwr.config.suggestions import either
from fedkd_flwr.config.toml_files import (
    close_names,
    find_sweep,
    keys_of_own,
    load_toml,
    read_toml,
    sweep_names,
)
from fedkd_flwr.files import plain_name
from strategies.core.flower import log

COMBINATIONS = "combinations"  # name of the list of tables in the grid

Selection = Mapping[str, Scalar | Collection[Scalar]]
"""Some runs of a sweep: those with the value, or one of the values, given for some settings."""


def read_sweep(
    path: str | Path, settings: Mapping[str, Scalar] | None = None
) -> dict[str, Configuration]:
    """Read a sweep file and validate every run of it."""
    path = sweep_file(path)
    settings = dict(settings or {})
    base, own, varied = _read_tables(path)
    custom: set[str] = set()
    for run in varied:
        with _named(path, run):
            custom |= custom_keys({**base, **run, **settings})
    configurations: dict[str, Configuration] = {}
    ignored: dict[str, dict[str, None]] = {}
    for run in varied:
        with _named(path, run):
            asked = with_own_settings_unpacked({**base, **run, **settings})
            others = custom - custom_keys(asked)
            configuration = read_config({k: v for k, v in asked.items() if k not in others})
        unread = others.union(run.keys() & configuration.unread)
        reported = [key for key in asked if key in unread]
        ignored.setdefault(configuration.run.strategy, {}).update(dict.fromkeys(reported))
        twin = configurations.setdefault(run_name(configuration), configuration)
        if twin is not configuration:
            _require_same_place(path, twin, configuration)
    given = {*own, *settings, *(key for run in varied for key in run)}
    unread_by = [
        [*run.unread, *given.intersection(run.run.data.unread_by_split)]
        for run in configurations.values()
    ]
    if by_nobody := [key for key in unread_by[0] if all(key in keys for keys in unread_by)]:
        log(WARNING, "No run of the sweep %s reads %s: ignored.", path, ", ".join(by_nobody))
    if ignoring := [f"{name} ignores {', '.join(keys)}" for name, keys in ignored.items() if keys]:
        log(INFO, "Methods ignore the settings of others: %s.", "; ".join(ignoring))
    return configurations


def select_runs(
    path: str | Path, configurations: Mapping[str, Configuration], only: Selection
) -> dict[str, Configuration]:
    """Return those runs of a sweep that have one of the values wanted for each setting."""
    read = {name: _read_settings(run) for name, run in configurations.items()}
    choices = {key: dict.fromkeys(s[key] for s in read.values() if key in s) for key in only}
    if unknown := [key for key, values in choices.items() if not values]:
        raise ConfigError(f"The runs of the sweep {path} have no setting {', '.join(unknown)}.")

    def has(name: str, key: str, value: Scalar) -> bool:
        held = read[name].get(key)
        return held is not None and held in (value, _as_read(configurations[name], key, value))

    def alternatives(key: str, value: Scalar) -> list[Scalar]:
        # ``local,kt-pfl`` are two; a list of models that a run has is one.
        is_one = not isinstance(value, str) or any(has(name, key, value) for name in read)
        return [value] if is_one else [*str(value).split(",")]

    listed = {key: [v] if isinstance(v, Scalar) else v for key, v in only.items()}
    wanted = {
        key: [a for v in values for a in alternatives(key, v)] for key, values in listed.items()
    }
    absent = {
        key: [v for v in values if not any(has(name, key, v) for name in read)]
        for key, values in wanted.items()
    }
    selected = {
        name: configuration
        for name, configuration in configurations.items()
        if all(any(has(name, key, v) for v in values) for key, values in wanted.items())
    }
    if not selected or any(absent.values()):
        lacking = {key: values for key, values in absent.items() if values} or wanted
        raise ConfigError(
            f"The sweep {path} has no run with {_in_words(lacking)}; its runs have "
            f"{_in_words(choices)}."
        )
    return selected


def _as_read(configuration: Configuration, key: str, value: Scalar) -> Scalar:
    """Return a value as the config of a run holds it; unchanged if the run cannot have it."""
    if not isinstance(value, str):
        return value
    try:
        return read_config({**configuration.flat(), key: value}).flat()[key]
    except ConfigError:
        return value


def _read_settings(configuration: Configuration) -> dict[str, Scalar]:
    """Return the settings that a run reads: those that define it, and where it takes place."""
    place = {key: v for key, v in configuration.flat().items() if key in KEYS_WITHOUT_EFFECT}
    return configuration.defining() | place


def _in_words(values_of: Mapping[str, Collection[Scalar]]) -> str:
    return ", ".join(
        f"{key} = {either([str(value) for value in values])}" for key, values in values_of.items()
    )


def run_name(configuration: Configuration) -> str:
    """Return the name of a run's directory, a function of the settings that define the run."""
    defaults, settings = default_values(), configuration.defining()
    changed = {name: value for name, value in settings.items() if value != defaults.get(name)}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
    strategy = plain_name(configuration.run.strategy)
    return f"{strategy}-seed{configuration.run.plan.seed}-{digest[:8]}"


def run_labels(configurations: Mapping[str, Configuration]) -> dict[str, str]:
    """Return what to call each run of a sweep: its method, and the settings that vary."""
    settings = {name: run.defining() for name, run in configurations.items()}
    keys = dict.fromkeys(key for own in settings.values() for key in own)
    varied = [
        key
        for key in keys
        if key != "strategy" and len({own[key] for own in settings.values() if key in own}) > 1
    ]
    shown = {
        n: [f"{key}={own[key]}" for key in varied if key in own] for n, own in settings.items()
    }
    return {name: " ".join([str(settings[name]["strategy"]), *own]) for name, own in shown.items()}


def sweep_file(name: str | Path) -> Path:
    """Return the file of a sweep, which may be named by what it is called in the project."""
    file = find_sweep(name)
    if file is None:
        raise ConfigError(f"There is no sweep {name}; {close_names(name, sweep_names(), 'sweeps')}")
    return file


def _read_tables(path: Path) -> tuple[dict[str, Any], set[str], list[dict[str, Any]]]:
    """Return what all runs share, its keys that are not the project's, and what each run has."""
    content = load_toml(path, "sweep")
    if not content.keys() & {"base", "grid"}:
        raise ConfigError(
            f"{path} is a preset, not a sweep: it has no [grid]. Type: fedkd run {path}"
        )
    base, grid = content.get("base", {}), content.get("grid", {})
    grids = grid if isinstance(grid, list) else [grid]
    are_tables = all(isinstance(table, dict) for table in [base, *grids])
    if content.keys() - {"base", "grid"} or not are_tables or not all(grids):
        raise ConfigError(
            f"The sweep {path} needs a table [grid], may have [base], and nothing else."
        )
    shared = flatten(base)
    preset, own = shared.pop("preset", ""), {*shared}
    if preset:
        beside = path.parent / str(preset)
        file = beside if beside.is_file() else str(preset)
        own |= {*keys_of_own(file)}
        shared = {**read_toml(file), **shared}
    return (
        shared,
        own - {"preset"},
        [
            {key: value for choice in choices for key, value in choice.items()}
            for grid in grids
            for choices in itertools.product(*_axes(path, grid))
        ],
    )


def _axes(path: Path, grid: dict[str, Any]) -> list[list[dict[str, Any]]]:
    axes = [_choices(path, name, values) for name, values in flatten(grid).items()]
    names = [name for choices in axes for name in {key for choice in choices for key in choice}]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The sweep {path} varies {name} in two places; one is allowed.")
    return axes


def _choices(path: Path, name: str, values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"The sweep {path} needs a list of values for {name}.")
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(
            f"The sweep {path} lists {name} = {twice[0]} twice, which is one run: remove it, or "
            "give the other its own value."
        )
    if name != COMBINATIONS:
        return [{name: value} for value in values]
    if not all(isinstance(value, dict) for value in values):
        raise ConfigError(f"The {COMBINATIONS} of the sweep {path} have to be tables.")
    return [flatten(value) for value in values]


@contextmanager
def _named(path: Path, varied: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        chosen = ", ".join(f"{name} = {value}" for name, value in varied.items())
        raise ConfigError(f"{path}, the run with {chosen}: {error}") from None


def refuse_replaced_values(path: str | Path, settings: Mapping[str, Scalar]) -> None:
    """Refuse settings of all runs that the grid varies: they would leave nothing to compare."""
    *_, runs = _read_tables(sweep_file(path))
    for name, value in settings.items():
        values = list(dict.fromkeys(str(run[name]) for run in runs if name in run))
        if values:
            choice = value if str(value) in values else values[0]
            raise ConfigError(
                f"The sweep {path} lists its own values of {name}: {', '.join(values)}. Instead of "
                f"-c {name}={value}, type --only {name}={choice} to do some of its runs, or edit "
                "[grid] in the file."
            )


def _require_same_place(path: Path, one: Configuration, other: Configuration) -> None:
    """Refuse two runs that differ in nothing but where and how they take place."""
    first, second = one.flat(), other.flat()
    differing = [name for name in first if "." not in name and first[name] != second[name]]
    if differing:
        raise ConfigError(
            f"The sweep {path} varies {', '.join(differing)}, which does not distinguish runs; "
            "set it for all of them, in [base] or with -c."
        )
