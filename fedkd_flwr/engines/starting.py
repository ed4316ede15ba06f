"""Start and continue runs from Python, on an engine that is found by its name."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedkd_flwr.config import ConfigError, Configuration, read_config
from fedkd_flwr.config.toml_files import upon_preset
from fedkd_flwr.custom_objects.naming import name_objects
from fedkd_flwr.data.registry import BY_COLUMN, BY_FILE, forget_changed_folders
from fedkd_flwr.engines.in_process import check_in_process, run_in_process
from fedkd_flwr.engines.round_bar import Progress, observer_of, saying_how_to_go_on
from fedkd_flwr.engines.simulation import check_simulation, run_simulation
from fedkd_flwr.runs import (
    Run,
    RunDirectory,
    absolute,
    default_run_directory,
    load_run,
    names_of_code,
    recorded_config,
    upon_start,
)
from fedkd_flwr.runs.checkpoint import clients_folder
from fedkd_flwr.runs.recorded import require_same_objects
from fedkd_flwr.server_app import check_run
from strategies.core.rounds import Observer, OnRound
from strategies.core.settings_groups import kebab_case


def run(
    preset: str | Path | Mapping[str, Any] | None = None,
    *,
    engine: str = "in-process",
    output_dir: str | Path | None = None,
    start_from: Run | str | Path | None = None,
    on_round: OnRound | None = None,
    progress: Progress = "auto",
    **settings: Any,
) -> Run:
    """Run a method and return the finished run.

    Parameters
    ----------
    preset : str, Path or mapping, optional
        A TOML preset, the name of one that comes with the project, or a flat run config;
        defaults where left out.
    engine : str
        ``in-process`` or ``simulation``.
    output_dir : str or Path, optional
        The run directory; a new one under ``./runs`` if left out.
    start_from : Run, str or Path, optional
        A run, finished or stopped, from whose models and state this one starts. Its settings hold
        where none are given. Method, architectures and clients have to be the same.
    on_round : callable, optional
        Is called with each finished round's row.
    progress : bool or "auto"
        Whether to show a bar over the rounds; by default in notebooks and on terminals.
    **settings
        Further run config values, with underscores for dashes; names with dots through a
        dictionary, ``**{"kt-pfl.rho": 0.7}``. Python objects are accepted where names are, as
        `fedkd_flwr.name_objects` takes them: ``models=TinyNet, dataset=(X, y)``.

    Returns
    -------
    Run
        The finished run, with the frames `rounds` and `clients` and the `summary`.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        In one sentence, before any client works.

    Examples
    --------
    >>> run = fedkd_flwr.run(strategy="kt-pfl", models="mlp", num_clients=3, num_server_rounds=2)
    >>> len(run.rounds)
    2
    >>> slower = fedkd_flwr.run(start_from=run, learning_rate=0.001)
    """
    find_engine(engine)
    values = name_objects(_kebab(settings))
    if isinstance(preset, Mapping):
        values = {**name_objects(preset), **values}
    elif preset:
        values = upon_preset(preset, values)
    if start_from is not None:
        values = upon_start(start_from, values)
    if output_dir is not None:
        values["output-dir"] = str(output_dir)
    return run_configuration(read_config(values), engine, on_round, progress)


def run_configuration(
    configuration: Configuration,
    engine: str = "in-process",
    on_round: OnRound | None = None,
    progress: Progress = False,
) -> Run:
    """Run a method by a run config that was read before; see `run`."""
    _read_changed_folders_again(configuration)
    configuration = resolve_output(configuration, Path.cwd() / "runs")
    check_run(configuration)
    return _followed(configuration, engine, on_round, progress)


def _followed(
    configuration: Configuration, engine: str, on_round: OnRound | None, progress: Progress
) -> Run:
    """Run a method; a Ctrl-C says what the stopped run is good for."""
    with saying_how_to_go_on(configuration):
        return find_engine(engine)(configuration, observer_of(configuration, progress, on_round))


def resume(
    run: Run | str | Path,
    *,
    engine: str = "in-process",
    on_round: OnRound | None = None,
    allow_code: str | Iterable[str] = (),
    progress: Progress = "auto",
    stop: bool = False,
    **settings: Any,
) -> Run:
    """Continue a stopped run, or extend a finished one, and return the finished run.

    Parameters
    ----------
    run : Run, str or Path
        The run or its directory, which may have been moved.
    engine : str
        ``in-process`` or ``simulation``.
    on_round : callable, optional
        Is called with each finished round's row.
    allow_code : str or iterable of str
        Code that the run's config may name, see `fedkd_flwr.load_run`; by default what a `Run`
        allows. Code in `settings` may be named in any case.
    progress : bool or "auto"
        As of `run`.
    stop : bool
        End a stopped run after its last complete round instead; it then counts as finished.
    **settings
        Run config values that change, with underscores for dashes: ``num_server_rounds=40``
        extends it to 40 rounds. See `fedkd_flwr.runs.continuing.MAY_CHANGE` for those that may.
        A run with Python objects needs the same objects again: ``models=TinyNet``.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        In one sentence, before any client works.

    Examples
    --------
    >>> longer = fedkd_flwr.resume("runs/first", num_server_rounds=3)
    >>> len(longer.rounds)
    3
    """
    find_engine(engine)
    path, known = (run.path, run.allow_code) if isinstance(run, Run) else (run, ())
    configuration = resumed(path, name_objects(_kebab(settings)), allow_code or known)
    if stop:
        directory, _ = RunDirectory.reopen(Path(configuration.run.output_dir), configuration)
        return directory.finish()
    _read_changed_folders_again(configuration)
    check_run(configuration)
    return _followed(configuration, engine, on_round, progress)


def _read_changed_folders_again(configuration: Configuration) -> None:
    data = configuration.run.data
    forget_changed_folders(data.dataset, data.public_dataset)


def resolve_output(configuration: Configuration, parent: Path) -> Configuration:
    """Return the config with absolute folders, and with a new run directory if it names none.

    Clients save their memory in the run directory, so that the run can be continued. With
    ``num-clients = 0`` the run has a client for each value of ``client-column``, or for each folder
    or file of ``clients:PATH`` and ``pfllib:PATH``.
    """
    configuration = with_natural_clients(configuration)
    run = configuration.run
    path = absolute(run.output_dir or default_run_directory(configuration, parent))
    state_dir = run.state_dir or str(clients_folder(path))
    return with_absolute_folders(configuration, output_dir=str(path), state_dir=state_dir)


def with_natural_clients(configuration: Configuration) -> Configuration:
    """Return the config with a client for each value of ``client-column``, or each file of clients.

    It is unchanged unless it leaves N open. Raises `DataError` if the data set has no such column,
    or no such files.
    """
    data, plan = configuration.run.data, configuration.run.plan
    if plan.num_clients or data.partition not in (BY_COLUMN, BY_FILE):
        return configuration
    _read_changed_folders_again(configuration)
    from fedkd_flwr.data.natural_split import owners_of  # deferred: it loads PyTorch

    return configuration.with_clients(len(owners_of(data).names))


def resumed(
    path: str | Path,
    changes: Mapping[str, Any] | None = None,
    allow_code: str | Iterable[str] = (),
) -> Configuration:
    """Return the config with which a run is continued.

    The directory may have been moved. `check_run` refuses changes that may not be. Code in
    `changes` may be named in any case. Raises `RunDirectoryError` if there is no run, it is
    damaged, or it names code that the user has not named; `ConfigError` if the changes are not
    valid, or name another directory.
    """
    stopped = load_run(path, allow_code)
    require_same_objects(stopped, changes or {})
    place = {"output-dir": str(stopped.path)}
    recorded = recorded_config(stopped, names_of_code(changes or {}))
    if "models-dir" not in (changes or {}):
        _require_own_folder(stopped, recorded.run.models_dir)
    configuration = read_config({**recorded.flat(), **place, **(changes or {}), "resume": True})
    if absolute(configuration.run.output_dir) != stopped.path:
        raise ConfigError(
            f"{stopped.path} is continued in place, so output-dir must not change; "
            "move the directory instead."
        )
    return with_absolute_folders(configuration)


def _require_own_folder(stopped: Run, models_dir: str) -> None:
    """Refuse a folder that a run from elsewhere names, since models there would be replaced."""
    if not models_dir or str(stopped.path) == stopped.config.get("output-dir"):
        return
    if not Path(models_dir).is_relative_to(stopped.path):
        raise ConfigError(
            f"{stopped.path} has been moved, and its config names models-dir = {models_dir} "
            "outside it: type -c models-dir=FOLDER to say where models may be written."
        )


def with_absolute_folders(configuration: Configuration, **update: str) -> Configuration:
    """Return the config with `update`, and with absolute paths of all folders."""
    run = configuration.run.model_copy(update=update)
    names = ("output_dir", "models_dir", "state_dir")
    folders = {name: _absolute(getattr(run, name)) for name in names}
    data = run.data.model_copy(update={"data_root": _absolute(run.data.data_root)})
    return configuration.with_run(**(update | folders), data=data)


def _kebab(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {kebab_case(name): value for name, value in settings.items()}


def _absolute(folder: str) -> str:
    return str(absolute(folder)) if folder else ""


class Engine(Protocol):
    """Runs a method as its config says and returns the finished run."""

    def __call__(
        self,
        configuration: Configuration,
        observer: Observer | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> Run:
        """Run the method; see `fedkd_flwr.engines.simulation.run_simulation` for the parameters."""


ENGINES: dict[str, Engine] = {"in-process": run_in_process, "simulation": run_simulation}
"""Where clients can run."""

CHECKS: dict[str, Callable[[Configuration, Mapping[str, Any] | None], None]] = {
    "in-process": check_in_process,
    "simulation": check_simulation,
}
"""What refuses a run that an engine cannot start on this machine."""


def find_engine(name: str) -> Engine:
    """Return the engine of a name.

    Raises `ConfigError` if there is none; with the allowed names.
    """
    if name not in ENGINES:
        starts = [engine for engine in ENGINES if name and engine.startswith(name.lower())]
        close = starts or difflib.get_close_matches(name.lower(), ENGINES, n=1)
        meant = f"; did you mean {close[0]}?" if close else "."
        raise ConfigError(
            f"engine = {name!r} is not one of {', '.join(ENGINES)} or, for `fedkd run`, "
            f"deployment:NAME{meant}"
        )
    return ENGINES[name]


def check_engine(
    name: str, configuration: Configuration, resources: Mapping[str, Any] | None = None
) -> None:
    """Refuse a run that an engine cannot start on this machine.

    Raises `ConfigError` with one sentence; the engine itself would raise the same.
    """
    CHECKS[name](configuration, resources)
