"""Commands that run methods: ``fedkd run`` and ``fedkd sweep``."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkd_flwr.cli.options import (
    Assignments,
    Engine,
    Preset,
    read_assignments,
    read_choices,
    read_values,
)
from fedkd_flwr.cli.output import one_clear_line, say, say_beside, show_table

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration
    from fedkd_flwr.runs import Run


INTERRUPTED = 130
"""Exit status of a program that Ctrl-C has ended, as shells count it."""

RESULTS = {
    "last round": "last_round",
    "best validation": "validation_round",
    "new clients": "new_clients",
}
"""Parts of a summary that have accuracies, by what they are called."""


def run(
    preset: Preset = None,
    engine: Engine = "in-process",
    clients: Annotated[
        int | None, typer.Option(help="Clients to start; as many as the preset needs if left out.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="The run directory.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the stopped run in a directory, or a finished one with more rounds, "
            "-c num-server-rounds=N.",
        ),
    ] = None,
    save_models: Annotated[
        bool, typer.Option(help="Export personalized models into the run directory.")
    ] = False,
    assignments: Assignments = None,
    federation_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Flower's federation config, for the simulation engine."
        ),
    ] = None,
    per_client: Annotated[bool, typer.Option(help="Print a table of all clients too.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show Flower's log.")] = False,
) -> None:
    """Run a method, with a progress bar and a table of results."""
    with one_clear_line():
        from fedkd_flwr.engines import deployed_to, find_engine
        from fedkd_flwr.server_app import check_run

        values = read_values(preset, assignments)
        if output_dir is not None:
            values["output-dir"] = str(output_dir)
        superlink = deployed_to(engine)
        if superlink is not None:
            others = {
                "--clients": clients,
                "--resume": resume,
                "--save-models": save_models,
                "--federation-config": federation_config,
                "--per-client": per_client,
                "--verbose": verbose,
            }
            refuse_in_deployment([name for name, value in others.items() if value])
            deploy(values, superlink)
            return
        find_engine(engine)
        if resume is None:
            configuration = new_configuration(values, save_models)
        else:
            configuration = continued_configuration(resume, values, save_models)
        check_clients(configuration, clients)
        check_run(configuration)
        resources = read_assignments(federation_config)
        finished = run_with_progress(configuration, engine, clients, resources, verbose)
        if per_client:
            print_clients(finished)
        print_result(finished)


def refuse_in_deployment(options: Sequence[str]) -> None:
    """Refuse options about clients, a run directory or a progress bar on this machine.

    Raises
    ------
    ConfigError
        If there are any.
    """
    from fedkd_flwr.config import ConfigError

    if options:
        raise ConfigError(
            f"A deployment takes no {', '.join(options)}: nodes are started by themselves, "
            "Flower's log is shown, and settings such as resume and models-dir are given with -c."
        )


def deploy(values: Mapping[str, Any], superlink: str) -> None:
    """Check a config, and only then start a run on a SuperLink and follow it."""
    from fedkd_flwr.config import ALL_CONNECTED, ConfigError, read_config
    from fedkd_flwr.engines import run_deployment

    configuration = read_config({**ALL_CONNECTED, **values})
    output_dir = configuration.run.output_dir
    if output_dir and not Path(output_dir).is_absolute():
        raise ConfigError(
            f"output-dir = {output_dir!r}: it should be an absolute path on the SuperLink's "
            "machine."
        )
    try:
        run_deployment(configuration, superlink, say)
    except KeyboardInterrupt:
        say_beside(["The run goes on without being followed; flwr list and flwr stop RUN-ID."])
        raise typer.Exit(INTERRUPTED) from None


def new_configuration(values: Mapping[str, Any], save_models: bool) -> "Configuration":
    """Return the config of a new run, with absolute folders."""
    from fedkd_flwr.config import read_config
    from fedkd_flwr.engines import resolve_output

    configuration = resolve_output(read_config(values), Path.cwd() / "runs")
    if not save_models:
        return configuration
    models_dir = str(Path(configuration.run.output_dir) / "models")
    changed = configuration.run.model_copy(update={"models_dir": models_dir})
    return configuration.model_copy(update={"run": changed})


def continued_configuration(
    path: Path, values: Mapping[str, Any], save_models: bool
) -> "Configuration":
    """Return the config with which a run goes on, and say what changes."""
    from fedkd_flwr.engines import resumed
    from fedkd_flwr.runs import absolute, changed_settings, load_run, told

    models = {"models-dir": str(absolute(path) / "models")} if save_models else {}
    configuration = resumed(path, {**values, **models})
    changes = changed_settings(load_run(path), configuration)
    if changes:
        say(f"The run goes on with {told(changes)}.")
    return configuration


def check_clients(configuration: "Configuration", clients: int | None) -> None:
    """Refuse to start fewer clients than the run needs.

    Raises
    ------
    ConfigError
        With the number that is needed.
    """
    from fedkd_flwr.config import ConfigError

    needed = configuration.run.plan.num_clients
    if clients is not None and clients < needed:
        raise ConfigError(
            f"The run needs {needed} clients and --clients starts {clients}; to change the "
            f"experiment itself, write -c num-clients={clients}."
        )


def run_with_progress(
    configuration: "Configuration",
    engine: str,
    clients: int | None,
    resources: Mapping[str, Any],
    verbose: bool,
) -> "Run":
    """Run on the chosen engine under a progress bar; say how to go on if it is interrupted."""
    from fedkd_flwr.cli.progress import RunProgress
    from fedkd_flwr.engines import find_engine

    settings = configuration.run
    say(f"Run directory: {settings.output_dir}")
    progress = RunProgress(settings.strategy, settings.plan.num_server_rounds, verbose)
    try:
        with progress:
            return find_engine(engine)(
                configuration,
                progress.on_round,
                progress.on_line,
                clients,
                resources,
                progress.on_clients,
            )
    except KeyboardInterrupt:
        say_beside([interrupted(configuration, engine)])
        raise typer.Exit(INTERRUPTED) from None


def interrupted(configuration: "Configuration", engine: str) -> str:
    """Say how far an interrupted run came, and how it goes on."""
    from fedkd_flwr.runs import read_checkpoint

    directory = Path(configuration.run.output_dir)
    completed = read_checkpoint(directory).completed_rounds
    if not completed:
        return "Stopped before the end of the first round: there is nothing to go on from."
    option = "" if engine == "in-process" else f" --engine {engine}"
    total = configuration.run.plan.num_server_rounds
    return (
        f"Stopped after round {completed} of {total}. "
        f"It goes on with: fedkd run{option} --resume {shlex.quote(str(directory))}"
    )


def print_clients(finished: "Run") -> None:
    """Print what each client reached in the last round in which it was evaluated."""
    rows: dict[int, Mapping[str, Any]] = {
        row["partition_id"]: row for row in finished.client_rows if row.get("accuracy") is not None
    }
    headings = ("client", "model", "samples to train", "to test", "accuracy", "round")
    cells = [
        (
            str(n),
            str(row["model"]),
            f"{row['num_examples']:.0f}",
            f"{row['total']:.0f}",
            f"{row['accuracy']:.1%}",
            str(row["round"]),
        )
        for n, row in sorted(rows.items())
    ]
    show_table(headings, cells, numbers=headings[2:])


def print_result(finished: "Run") -> None:
    """Print the result table and the absolute path of the run directory."""
    summary = finished.summary or {}
    rows = [
        (
            label,
            f"{result['round']:.0f}",
            f"{result['accuracy_mean']:.1%}",
            f"{100 * result['accuracy_std']:.1f}",
            *(f"{result[f'accuracy_{name}']:.1%}" for name in ("min", "max", "weighted")),
        )
        for label, key in RESULTS.items()
        if (result := summary.get(key)) and result["accuracy_mean"] is not None
    ]
    columns = ("round", "mean", "std, points", "worst", "best", "weighted")
    title = f"{summary['strategy']}: accuracy on each client's own test split"
    show_table(("at", *columns), rows, title, numbers=columns)
    say(
        f"{summary['numbers_up']:,} numbers up, {summary['numbers_down']:,} down; "
        f"{summary['failures']} failures; {summary['seconds']:.1f} s"
    )
    say(f"Run directory: {finished.path}")


def sweep(
    file: Annotated[
        Path,
        typer.Argument(help="TOML file with [base] and [grid], or a name of `fedkd list presets`."),
    ],
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder of the runs; runs/NAME-OF-THE-FILE if left out.")
    ] = None,
    engine: Engine = "in-process",
    save_models: Annotated[
        bool, typer.Option(help="Export each run's personalized models into its directory.")
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="J",
            min=1,
            help="Runs at a time, each in a process of its own; on the machines of a Ray cluster "
            "where RAY_ADDRESS names one.",
        ),
    ] = 1,
    cpus_per_run: Annotated[
        int,
        typer.Option(
            metavar="C",
            min=0,
            show_default=False,
            help="Threads and CPUs of a run; its torch-threads, or 1, if left out.",
        ),
    ] = 0,
    gpus_per_run: Annotated[
        float,
        typer.Option(
            metavar="G", min=0, help="GPUs of a run among several; 0.5 lets two share one."
        ),
    ] = 0.0,
    assignments: Annotated[
        list[str] | None,
        typer.Option("-c", metavar="KEY=VALUE", help="Settings of every run; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Those runs alone that have this value; repeatable, and of two values for one "
            "KEY either will do.",
        ),
    ] = None,
) -> None:
    """Do the runs of a sweep that are not done yet; those that were stopped go on."""
    with one_clear_line():
        from fedkd_flwr.cli.sweeping import SweepDisplay
        from fedkd_flwr.sweeps import run_sweep, sweep_folder

        settings, part = read_assignments(assignments), read_choices(only)
        folder = sweep_folder(file, output_dir)
        say(f"Runs: {folder}")
        try:
            with SweepDisplay() as display:
                finished = run_sweep(
                    file,
                    folder,
                    engine,
                    display.on_run,
                    settings,
                    save_models,
                    jobs=jobs,
                    cpus_per_run=cpus_per_run,
                    gpus_per_run=gpus_per_run,
                    on_round=display.on_round,
                    only=part,
                )
        except KeyboardInterrupt:
            kept = f"Stopped; the {display.done} runs that are done stay in {folder}."
            say_beside([f"{kept} The same command does the others."])
            raise typer.Exit(INTERRUPTED) from None
        if finished:
            say(f"Compare: fedkd compare {shlex.quote(str(finished[0].path.parent))}")
        if display.failed:
            raise RuntimeError(
                f"{display.failed} runs failed; failures.jsonl beside them says why."
            )
