"""Sweeps: many runs from one TOML file, which can be stopped and taken up again.

A sweep file has the settings that all runs share in ``[base]``, where ``preset`` may name a
preset beside it, and in ``[grid]`` a list of values for each setting that varies. Settings that
only go together are tables in the list ``combinations``, which counts as one more setting::

    [base]
    preset = "../kt-pfl/fashion-mnist-two-classes.toml"

    [grid]
    seed = [0, 1, 2]
    combinations = [
        { strategy = "kt-pfl", models = "lenet,alexnet" },
        { strategy = "fedavg", models = "lenet" },
    ]

Each run has a directory named after its settings, so that a second call finds it.
"""

import hashlib
import itertools
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import Any, Literal

from flwr.supercore import log

from fedkd_flwr import engines
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.config import (
    ConfigError,
    Configuration,
    Scalar,
    flatten,
    load_toml,
    read_config,
    read_toml,
)
from fedkd_flwr.runs import (
    Run,
    RunDirectoryError,
    absolute,
    load_run,
    remove_checkpoint,
    require_writable,
)

COMBINATIONS = "combinations"
"""Name of the list of tables in the grid."""


@dataclass(frozen=True)
class SweepProgress:
    """What is told of one run of a sweep.

    Attributes
    ----------
    number, total : int
        Which run of how many, counted from 1.
    name : str
        Name of its directory.
    state : str
        ``started``, then ``finished`` or ``failed``; ``skipped`` where it was finished before.
    run : Run or None
        The run, where it is finished or skipped.
    error : str
        Why it failed, else empty.
    """

    number: int
    total: int
    name: str
    state: Literal["started", "finished", "failed", "skipped"]
    run: Run | None = None
    error: str = ""


def read_sweep(
    path: str | Path, settings: Mapping[str, Scalar] | None = None
) -> dict[str, Configuration]:
    """Read a sweep file and validate every run of it.

    Parameters
    ----------
    path : str or Path
        The TOML file.
    settings : mapping, optional
        Settings that hold for every run, whatever the file says.

    Returns
    -------
    dict of str to Configuration
        The runs in their order, by the name of their directory. Runs that differ in settings
        of other methods alone are one run.

    Raises
    ------
    ConfigError
        If the file is no sweep, or one of its runs is impossible.
    """
    path = Path(path)
    settings = dict(settings or {})
    base, axes = _read_tables(path)
    _tell_of_overrides(path, axes, settings)
    configurations: dict[str, Configuration] = {}
    for choices in itertools.product(*axes):
        varied: dict[str, Any] = {}
        for choice in choices:
            varied |= choice
        try:
            configuration = read_config({**base, **varied, **settings})
        except ConfigError as error:
            chosen = ", ".join(f"{name} = {value}" for name, value in varied.items())
            raise ConfigError(f"{path}, the run with {chosen}: {error}") from None
        twin = configurations.setdefault(run_name(configuration), configuration)
        _require_same_place(path, twin, configuration)
    return configurations


def run_name(configuration: Configuration) -> str:
    """Return the name of a run's directory, a function of the settings that define the run.

    Settings at their default do not enter it, so that a new setting leaves names alone.
    """
    defaults = read_config({}).flat()
    settings = defining_settings(configuration.flat())
    changed = {name: value for name, value in settings.items() if value != defaults[name]}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
    return f"{configuration.run.strategy}-seed{configuration.run.plan.seed}-{digest[:8]}"


def run_sweep(
    path: str | Path,
    output_dir: str | Path | None = None,
    engine: str = "in-process",
    on_run: Callable[[SweepProgress], None] | None = None,
    settings: Mapping[str, Scalar] | None = None,
    save_models: bool = False,
) -> list[Run]:
    """Do the runs of a sweep that are not done yet.

    A finished run is not repeated. An unfinished one is moved to the folder ``aside`` and
    done anew, so two processes must not work on one folder. A run that fails is recorded in
    ``failures.jsonl`` and does not stop the others. Finished runs keep no checkpoint: they
    are there to be compared, and the checkpoints of many would fill a disk.

    Parameters
    ----------
    path : str or Path
        The sweep file.
    output_dir : str or Path, optional
        Folder of the run directories, ``./runs/NAME-OF-THE-FILE`` if left out.
    engine : str
        ``in-process`` or ``simulation``.
    on_run : callable, optional
        Is told when a run starts and how it ends.
    settings : mapping, optional
        Settings that hold for every run, whatever the file says. With a ``models-dir`` each
        run has a folder of its own in it.
    save_models : bool
        Whether each run exports its personalized models into its own directory.

    Returns
    -------
    list of Run
        The finished runs in the order of the sweep.

    Raises
    ------
    ConfigError, RunDirectoryError
        Before any run starts.
    """
    engines.find_engine(engine)
    configurations = read_sweep(path, settings)
    folder = absolute(output_dir or Path("runs") / Path(path).stem)
    require_writable(folder, "folder of the runs")
    for models_dir in {configuration.run.models_dir for configuration in configurations.values()}:
        if models_dir and not save_models:
            require_writable(absolute(models_dir), "models-dir")
    tell = on_run or (lambda progress: None)
    finished = []
    for number, (name, configuration) in enumerate(configurations.items(), start=1):
        place = number, len(configurations), name
        run = _finished_run(folder / name, configuration)
        if run:
            tell(SweepProgress(*place, "skipped", run))
            finished.append(run)
            continue
        _move_aside(folder / name)
        tell(SweepProgress(*place, "started"))
        try:
            run = engines.run(
                configuration.flat(),
                engine=engine,
                output_dir=folder / name,
                models_dir=_models_folder(configuration, folder / name, save_models),
            )
            remove_checkpoint(run.path)
        except Exception as error:  # whatever a method does, the others get their turn
            _record_failure(folder, name, error)
            tell(SweepProgress(*place, "failed", error=str(error)))
        else:
            tell(SweepProgress(*place, "finished", run))
            finished.append(run)
    return finished


def _read_tables(path: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Return the settings that all runs share, and the choices of each axis of the grid."""
    content = load_toml(path, "sweep")
    base, grid = content.get("base", {}), content.get("grid", {})
    are_tables = isinstance(base, dict) and isinstance(grid, dict)
    if content.keys() - {"base", "grid"} or not are_tables or not grid:
        raise ConfigError(
            f"The sweep {path} needs a table [grid], may have [base], and nothing else."
        )
    shared = flatten(base)
    preset = shared.pop("preset", "")
    if preset:
        shared = {**read_toml(path.parent / str(preset)), **shared}
    axes = [_choices(path, name, values) for name, values in flatten(grid).items()]
    names = [name for choices in axes for name in {key for choice in choices for key in choice}]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The sweep {path} varies {name} in two places; one is allowed.")
    return shared, axes


def _choices(path: Path, name: str, values: Any) -> list[dict[str, Any]]:
    """Return the settings that one axis of the grid chooses from."""
    if not isinstance(values, list) or not values:
        raise ConfigError(f"The sweep {path} needs a list of values for {name}.")
    if name != COMBINATIONS:
        return [{name: value} for value in values]
    if not all(isinstance(value, dict) for value in values):
        raise ConfigError(f"The {COMBINATIONS} of the sweep {path} have to be tables.")
    return [flatten(value) for value in values]


def _tell_of_overrides(
    path: Path, axes: list[list[dict[str, Any]]], settings: Mapping[str, Scalar]
) -> None:
    """Say which settings from outside hold in place of what the grid varies."""
    varied = {name for choices in axes for choice in choices for name in choice}
    for name in sorted(varied & settings.keys()):
        log(
            WARNING,
            "%s = %s holds for every run, in place of what the sweep %s varies",
            name,
            settings[name],
            path,
        )


def _require_same_place(path: Path, one: Configuration, other: Configuration) -> None:
    """Refuse two runs that differ in nothing but where and how they take place.

    Runs that differ in settings of other methods are one run, which is meant.
    """
    first, second = one.flat(), other.flat()
    differing = [name for name in first if "." not in name and first[name] != second[name]]
    if differing:
        raise ConfigError(
            f"The sweep {path} varies {', '.join(differing)}, by which runs do not differ; "
            "set it for all of them, in [base] or with -c."
        )


def _models_folder(configuration: Configuration, run_directory: Path, save_models: bool) -> str:
    """Return where one run exports its models, a folder that no other run writes to."""
    if save_models:
        return str(run_directory / "models")
    shared = configuration.run.models_dir
    return str(Path(shared) / run_directory.name) if shared else ""


def _finished_run(path: Path, configuration: Configuration) -> Run | None:
    """Return the run that was done before; not one from before a default changed."""
    try:
        run = load_run(path)
    except RunDirectoryError:
        return None
    if not run.finished:
        return None
    same = defining_settings(run.config) == defining_settings(configuration.flat())
    return run if same else None


def _move_aside(path: Path) -> None:
    """Keep what an earlier attempt left behind, out of the way of the next."""
    if not path.exists():
        return
    aside = path.parent / "aside"
    aside.mkdir(exist_ok=True)
    tries = len(list(aside.glob(f"{path.name}-*")))
    path.rename(aside / f"{path.name}-{tries + 1}")


def _record_failure(folder: Path, name: str, error: Exception) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    failure = {
        "run": name,
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with (folder / "failures.jsonl").open("a") as file:
        file.write(json.dumps(failure) + "\n")
