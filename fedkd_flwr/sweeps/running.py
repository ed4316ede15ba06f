"""Do the runs of a sweep, one by one or in parallel."""

import hashlib
import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO, WARNING, LogRecord
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

from fedkd_flwr import engines
from fedkd_flwr.config import ConfigError, Configuration, require_importable
from fedkd_flwr.config.run_config import Scalar, in_kebab_case
from fedkd_flwr.custom_objects.naming import name_objects
from fedkd_flwr.files import make_folder, write_text
from fedkd_flwr.runs import (
    DamagedRunError,
    Run,
    RunDirectoryError,
    absolute,
    changeable,
    load_run,
    names_of_code,
    remove_checkpoint,
    require_writable,
)
from fedkd_flwr.sweeps.folder import (
    Failure,
    finished_run,
    missing_extras,
    move_aside,
    record_failure,
    require_own_folder,
    require_unlocked,
    rounds_to_continue_from,
    sweep_folder,
)
from fedkd_flwr.sweeps.grid import COMBINATIONS, Selection, read_sweep, run_labels, select_runs
from fedkd_flwr.sweeps.parallel_calls import call_in_parallel
from strategies.core.flower import LOGGER, log
from strategies.core.rounds import OnRound

State = Literal["started", "continued", "finished", "failed", "skipped"]
"""State of a run of a sweep."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, with everything that any process needs to do it."""

    number: int
    total: int
    label: str
    path: Path
    configuration: Configuration
    engine: str
    completed: int = 0

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.path.name

    @property
    def values(self) -> dict[str, Scalar]:
        """Its flat run config."""
        return self.configuration.flat()

    @property
    def rounds(self) -> int:
        """Planned rounds."""
        return self.configuration.run.plan.num_server_rounds

    def with_threads(self, threads: int) -> "SweepRun":
        """Return the run with a number of threads, unless it sets one."""
        own = self.configuration.run.torch_threads
        return replace(
            self, configuration=self.configuration.with_run(torch_threads=own or threads)
        )

    def progress(self, state: State, run: Run | None = None, **details: Any) -> "SweepProgress":
        """Return an event of the run."""
        return SweepProgress(**vars(self), state=state, run=run, **details)


@dataclass(frozen=True, kw_only=True)
class SweepProgress(SweepRun):
    """An event of one run of a sweep."""

    state: State
    run: Run | None = None
    error: str = ""
    missing_extras: tuple[str, ...] = ()


SweepListener = Callable[[str, Mapping[str, Any]], None]
"""Is called with a run's name and the row of a finished round."""


def run_sweep(
    path: str | Path,
    output_dir: str | Path | None = None,
    engine: str = "in-process",
    on_run: Callable[[SweepProgress], None] | None = None,
    settings: Mapping[str, Scalar] | None = None,
    save_models: bool = False,
    *,
    jobs: int = 1,
    cpus_per_run: int = 0,
    gpus_per_run: float = 0.0,
    on_round: SweepListener | None = None,
    only: Selection | None = None,
) -> list[Run]:
    """Do the runs of a sweep that are not finished.

    A finished run is not repeated. A stopped run is continued after its last complete round. If
    that is not possible, it is moved to the folder ``aside`` and rerun. A run that another process
    is writing is not touched and counts as a failure. A failed run is recorded in
    ``failures.jsonl`` and does not stop the others. Checkpoints of finished runs are removed,
    since those of many runs would fill a disk.

    Parallel runs are Ray tasks, each in its own process. If the environment variable
    ``RAY_ADDRESS`` names a cluster, they are spread over its machines. These need the same
    packages, and the folder of the runs at the same path. Results equal those of one run at a time
    with as many threads.

    Parameters
    ----------
    path : str or Path
        The sweep file.
    output_dir : str or Path, optional
        Folder of the run directories; by default ``./runs/NAME-OF-THE-FILE``.
    engine : str
        ``in-process`` or ``simulation``.
    on_run : callable, optional
        Is called when a run starts and when it ends; by default a failure is a warning.
    settings : mapping, optional
        Settings of every run; they override the file. With a ``models-dir``, each run has its own
        folder in it.
    save_models : bool
        Whether each run saves its personalized models in its directory.
    jobs : int
        Runs at a time.
    cpus_per_run : int
        Threads of each run without ``torch-threads``, and CPUs that Ray reserves for it. 0 means
        the largest ``torch-threads`` of any run, or 1.
    gpus_per_run : float
        GPUs that Ray reserves for a run; the run sees no others. With 0.5, two runs share one.
    on_round : callable, optional
        Is called with a run's name and each of its finished rounds' rows.
    only : mapping, optional
        Do only the runs with these values, such as ``{"seed": [0, 1]}``.

    Returns
    -------
    list of Run
        The finished runs in the order of the sweep.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        Before any run starts.

    Examples
    --------
    >>> len(fedkd_flwr.run_sweep("two.toml"))
    2
    """
    engines.find_engine(engine)
    read = read_sweep(path, settings)
    wanted = select_runs(path, read, only) if only else read
    # Finished runs have recorded how many clients they had, also where the sweep leaves N open.
    everything = {name: engines.with_natural_clients(run) for name, run in read.items()}
    configurations = {name: everything[name] for name in wanted}
    _check_jobs(jobs, engine, configurations.values())
    folder = sweep_folder(path, output_dir)
    require_own_folder(folder, everything.values())
    _require_writable_folders(folder, () if save_models else configurations.values())
    planned = _plan(configurations, folder, engine, save_models)
    if cpus_per_run or jobs > 1:
        of_runs = (run.configuration.run.torch_threads for run in planned)
        cpus_per_run = cpus_per_run or max(1, *of_runs)
        planned = [run.with_threads(cpus_per_run) for run in planned]
    tell = on_run or _warn_of_failure
    listen = on_round or (lambda name, row: None)
    finished: dict[str, Run] = {}

    def fail(run: SweepRun, failure: Failure) -> None:
        record_failure(folder, run.name, failure)
        tell(run.progress("failed", error=failure.message))

    def to_do() -> Iterator[SweepRun]:
        for run in planned:
            done = finished_run(run.path, run.values)
            if done:
                remove_checkpoint(run.path)
                finished[run.name] = done
                lacking = tuple(missing_extras(done, run.values))
                tell(run.progress("skipped", done, missing_extras=lacking))
                continue
            try:
                begun = _begun(run)
            except RunDirectoryError as error:
                fail(run, Failure.of(error))
                continue
            tell(begun.progress("continued" if begun.completed else "started"))
            yield begun

    if jobs == 1:
        ended = ((run, attempt(run, partial(listen, run.name))) for run in to_do())
    else:
        ended = _in_parallel(to_do(), jobs, cpus_per_run, gpus_per_run, listen)
    with closing(ended), _saying_once():
        for run, failure in ended:
            if failure:
                fail(run, failure)
            else:
                finished[run.name] = load_run(run.path, names_of_code(run.values))
                tell(run.progress("finished", finished[run.name]))
    return [finished[run.name] for run in planned if run.name in finished]


@contextmanager
def _saying_once() -> Iterator[None]:
    """Log what is said of the data once, and not for each run anew."""
    said: set[str] = set()

    def is_new(record: LogRecord) -> bool:
        line, known = record.getMessage(), len(said)
        said.add(line)
        return record.levelno > INFO or len(said) > known

    LOGGER.addFilter(is_new)
    try:
        yield
    finally:
        LOGGER.removeFilter(is_new)


def _warn_of_failure(progress: SweepProgress) -> None:
    if progress.state == "failed":
        log(WARNING, "%s failed: %s", progress.label, progress.error)


def _require_writable_folders(folder: Path, configurations: Iterable[Configuration]) -> None:
    require_writable(folder, "folder of the runs")
    for models_dir in {configuration.run.models_dir for configuration in configurations}:
        if models_dir:
            require_writable(absolute(models_dir), "models-dir")


def _begun(run: SweepRun) -> SweepRun:
    """Return a run with the rounds that it need not repeat, and make room if there are none."""
    require_unlocked(run.path)
    completed = rounds_to_continue_from(run.path, run.values)
    if not completed:
        move_aside(run.path)
    # A run that creates the folder removes it if it fails, even while others use it.
    run.path.parent.mkdir(parents=True, exist_ok=True)
    return replace(run, completed=completed)


def attempt(run: SweepRun, on_round: OnRound | None = None) -> Failure | None:
    """Do one run of a sweep; return its failure or None."""
    try:
        if not run.completed or not _continued(run, on_round):
            configuration = run.configuration.with_run(output_dir=str(run.path))
            engines.run_configuration(configuration, run.engine, on_round)
        remove_checkpoint(run.path)
    except Exception as error:  # the other runs are done in any case
        return Failure.of(error)
    return None


def _continued(run: SweepRun, on_round: OnRound | None) -> bool:
    """Continue a stopped run; if it is damaged, move it aside and return False."""
    changes, code = changeable(run.values), names_of_code(run.values)
    try:
        engines.resume(run.path, engine=run.engine, on_round=on_round, allow_code=code, **changes)
    except DamagedRunError as error:
        log(WARNING, "%s is rerun: %s", run.name, error)
        move_aside(run.path)
        return False
    return True


def _in_parallel(
    runs: Iterable[SweepRun], jobs: int, cpus: int, gpus: float, listen: SweepListener
) -> Generator[tuple[SweepRun, Failure | None], None, None]:
    """Yield runs as they end, each with its failure or None."""
    seen: dict[str, int] = {}

    def read_rounds(running: Collection[SweepRun]) -> None:
        for run in running:
            # On a shared folder a file may be incomplete; the final result is checked.
            with suppress(RunDirectoryError):
                for row in Run(run.path).rounds_after(seen.get(run.name, run.completed)):
                    listen(run.name, row)
                    seen[run.name] = row["round"]

    with closing(call_in_parallel(attempt, runs, jobs, cpus, gpus, read_rounds)) as outcomes:
        for run, outcome in outcomes:
            yield run, Failure.of(outcome) if isinstance(outcome, Exception) else outcome


def _check_jobs(jobs: int, engine: str, configurations: Iterable[Configuration]) -> None:
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs} is less than 1.")
    if jobs == 1:
        return
    if engine != "in-process":
        raise ConfigError(
            f"Parallel runs need the engine in-process; with the engine {engine}, which runs "
            "clients in parallel, type --jobs 1."
        )
    for configuration in configurations:
        require_importable(configuration, "parallel runs have")


def _plan(
    configurations: Mapping[str, Configuration], folder: Path, engine: str, save_models: bool
) -> list[SweepRun]:
    total = len(configurations)
    labels = run_labels(configurations)
    return [
        SweepRun(
            number,
            total,
            labels[name],
            folder / name,
            # Other processes may have another working directory. Clients' memories are kept in the
            # run directory, and removed at the end of the run.
            engines.with_absolute_folders(
                configuration.without_unread(),
                state_dir="",
                models_dir=_models_folder(configuration, folder / name, save_models),
            ),
            engine,
        )
        for number, (name, configuration) in enumerate(configurations.items(), start=1)
    ]


def _models_folder(configuration: Configuration, run_directory: Path, save_models: bool) -> str:
    if save_models:
        return str(run_directory / "models")
    shared = configuration.run.models_dir
    return str(absolute(shared) / run_directory.name) if shared else ""


SWEEP = "sweep.toml"  # the file beside the runs, which `run_sweep` and ``fedkd sweep`` read too


def sweep(
    base: Mapping[str, Any],
    grid: Mapping[str, Iterable[Any]],
    output_dir: str | Path | None = None,
    **options: Any,
) -> list[Run]:
    """Do a run for each combination of some values.

    A second call does what is left, also with more methods and seeds. The folder of the runs gets
    the sweep as ``sweep.toml``.

    Parameters
    ----------
    base : mapping
        Settings of every run, as `fedkd_flwr.run` takes them; ``preset`` may name one.
    grid : mapping
        The values of each setting that varies. Settings that only go together are mappings in a
        list ``combinations``.
    output_dir : str or Path, optional
        Folder of the runs; by default one in ``./runs`` that is named after `base`.
    **options
        Further arguments of `run_sweep`, such as ``jobs=2``.

    Returns
    -------
    list of Run
        The finished runs, in the order of the grid.

    Raises
    ------
    ConfigError, DataError, RunDirectoryError
        Before any run starts.

    Examples
    --------
    >>> runs = fedkd_flwr.sweep(
    ...     base={"models": "mlp", "num_clients": 3, "num_server_rounds": 1},
    ...     grid={"strategy": ["local", "kt-pfl"], "seed": range(2)},
    ... )
    >>> [(run.config["strategy"], run.config["seed"]) for run in runs]
    [('local', 0), ('local', 1), ('kt-pfl', 0), ('kt-pfl', 1)]
    """
    shared = _named(base)
    axes = {name: _values(name, values) for name, values in in_kebab_case(grid).items()}
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()
    folder = absolute(output_dir or Path("runs") / f"sweep-{digest[:8]}")
    make_folder(folder)
    write_text(folder / SWEEP, tomli_w.dumps({"base": shared, "grid": axes}))
    return run_sweep(folder / SWEEP, folder, **options)


def _values(name: str, values: Iterable[Any]) -> list[Any]:
    if name == COMBINATIONS:
        return [_named(value) for value in values]
    plain = (value.item() if isinstance(value, np.generic) else value for value in values)
    return [_named({name: value})[name] for value in plain]


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    named = name_objects(in_kebab_case(settings))
    return {key: str(v) if isinstance(v, Path) else v for key, v in named.items()}
