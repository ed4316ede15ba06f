"""Start and continue runs from Python, on an engine found by its name; show a bar over rounds."""

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from fedkd_flwr.config import ConfigError, Configuration, read_config
from fedkd_flwr.config.run_config import flatten, in_kebab_case
from fedkd_flwr.config.toml_files import keys_of_own, upon_preset
from fedkd_flwr.custom_objects.naming import name_objects
from fedkd_flwr.data.registry import BY_COLUMN, BY_FILE, forget_changed_folders
from fedkd_flwr.engines.in_process import check_in_process, run_in_process
from fedkd_flwr.engines.simulation import check_simulation, run_simulation
from fedkd_flwr.runs import (
    Run,
    RunDirectory,
    absolute,
    default_run_directory,
    load_run,
    names_of_code,
    read_checkpoint,
    recorded_config,
    upon_start,
)
from fedkd_flwr.runs.checkpoint import clients_folder
from fedkd_flwr.runs.recorded import require_same_objects
from fedkd_flwr.server_app import check_run
from strategies.core.flower import log
from strategies.core.rounds import Observer, OnRound, RoundRecord, RowObserver

Progress = bool | Literal["auto"]
"""Whether a bar is shown; ``"auto"`` shows it in notebooks and on terminals."""


def observer_of(
    configuration: Configuration, progress: Progress, on_round: OnRound | None
) -> Observer:
    """Return what follows a run for code that has started it."""
    someone_looks = sys.stderr.isatty() or "ipykernel" in sys.modules
    follow = on_round or (lambda row: None)
    if someone_looks if progress == "auto" else progress:
        run = configuration.run
        return RoundBar(run.strategy, run.plan.num_server_rounds, follow)
    return RowObserver(follow)


class RoundBar(RowObserver):
    """A bar over the rounds with accuracy and time left; it begins with the run directory."""

    def __init__(self, title: str, rounds: int, on_round: OnRound) -> None:
        super().__init__(on_round)
        self._title, self._rounds = title, rounds
        self._bar: tqdm[None] | None = None

    def run_started(self, run: Any) -> None:
        """Show where the run is, and rounds that it has."""
        bar = self._begin(len(run.round_rows))
        if not bar.disable:
            bar.write(f"Run directory: {run.path}", file=sys.stderr)

    def round_finished(self, record: RoundRecord) -> None:
        """Show a finished round and its accuracy."""
        bar = self._bar or self._begin(record.server_round - 1)
        if (accuracy := record.row["accuracy_mean"]) is not None:
            bar.set_postfix(accuracy=f"{accuracy:.1%}")
        bar.update()
        super().round_finished(record)

    def run_finished(self, summary: Mapping[str, Any]) -> None:
        """Leave the bar as it is."""
        self.run_stopped()

    def run_stopped(self) -> None:
        """Leave the bar as it is."""
        if self._bar:
            self._bar.close()

    def _begin(self, done: int) -> "tqdm[None]":
        self._bar = tqdm(desc=self._title, total=self._rounds, initial=done, unit="round")
        return self._bar


@contextmanager
def saying_how_to_go_on(configuration: Configuration) -> Iterator[None]:
    """Add to a Ctrl-C what the stopped run is good for."""
    try:
        yield
    except KeyboardInterrupt as stop:
        path, names = Path(configuration.run.output_dir), names_of_code(configuration.flat())
        modules = sorted({name.partition(":")[0] for name in names})
        allowed = f", allow_code={modules}" if modules else ""
        if completed := read_checkpoint(path).completed_rounds:
            stop.add_note(
                f"Stopped after round {completed} of {configuration.run.plan.num_server_rounds}. "
                f"Look at it with fedkd_flwr.load_run({str(path)!r}{allowed}), continue with "
                "fedkd_flwr.resume, or end it with fedkd_flwr.resume(..., stop=True)."
            )
        raise


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
        A TOML preset, the name of one that comes with the project, or a run config as a mapping,
        with dashes or underscores; defaults where left out.
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
    given = flatten(in_kebab_case(settings))
    if isinstance(preset, Mapping):
        given = {**flatten(in_kebab_case(preset)), **given}
    values = name_objects(given)
    own = {*values}
    if preset and not isinstance(preset, Mapping):
        own |= {*keys_of_own(preset)}
        values = upon_preset(preset, values)
    if start_from is not None:
        values = upon_start(start_from, values)
    if output_dir is not None:
        values["output-dir"] = str(output_dir)
    configuration = read_config(values)
    for line in configuration.ignored(own):
        log(WARNING, "%s", line)
    return run_configuration(configuration, engine, on_round, progress)


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
        return find_engine(engine)(
            configuration, observer_of(configuration, progress, on_round), None
        )


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
    configuration = resumed(path, name_objects(in_kebab_case(settings)), allow_code or known)
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
    """Return the config with absolute folders, and with a new run directory if it names none."""
    configuration = with_natural_clients(configuration)
    run = configuration.run
    path = absolute(run.output_dir or default_run_directory(configuration, parent))
    state_dir = run.state_dir or str(clients_folder(path))
    return with_absolute_folders(configuration, output_dir=str(path), state_dir=state_dir)


def with_natural_clients(configuration: Configuration) -> Configuration:
    """Return the config with a client for each owner of samples, if it leaves N open."""
    data, plan = configuration.run.data, configuration.run.plan
    if plan.num_clients or data.partition not in (BY_COLUMN, BY_FILE):
        return configuration
    _read_changed_folders_again(configuration)
    from fedkd_flwr.data.natural_split import owners_of  # deferred: it loads PyTorch

    return configuration.with_clients(len(owners_of(data).names))


def resumed(
    path: str | Path, changes: Mapping[str, Any] | None = None, allow_code: str | Iterable[str] = ()
) -> Configuration:
    """Return the config with which a run is continued."""
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


def _absolute(folder: str) -> str:
    return str(absolute(folder)) if folder else ""


Engine = Callable[[Configuration, Observer, Mapping[str, Any] | None], Run]
"""Runs a method as its config says, with Flower's federation config, and returns the run."""

ENGINES: dict[str, Engine] = {"in-process": run_in_process, "simulation": run_simulation}
"""Where clients can run."""

CHECKS = {"in-process": check_in_process, "simulation": check_simulation}
"""What refuses a run that an engine cannot start on this machine."""


def find_engine(name: str) -> Engine:
    """Return the engine of a name."""
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
    """Refuse a run that an engine cannot start on this machine."""
    CHECKS[name](configuration, resources)
