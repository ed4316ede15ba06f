"""The command that runs a method: ``fedkd run``."""

import shlex
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkd_flwr.cli.interrupts import ctrl_c_interrupts
from fedkd_flwr.cli.options import (
    AcceptChanges,
    AllowCode,
    Assignments,
    Engine,
    Preset,
    read_assignments,
    read_values,
)
from fedkd_flwr.cli.output import one_clear_line, say, say_beside, show_table

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration
    from fedkd_flwr.runs import Run


INTERRUPTED = 130
"""Exit status of a program that was ended by Ctrl-C, as shells report it."""

RESULTS = {
    "last round": "last_round",
    "best validation": "validation_round",
    "new clients": "new_clients",
}
"""Parts of a summary that hold accuracies, by the label that is printed."""


def run(
    preset: Preset = None,
    engine: Engine = "in-process",
    output_dir: Annotated[
        Path | None, typer.Option(help="The run directory; by default a new one in ./runs.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the run in this directory: a stopped one, or a finished one with more "
            "rounds (-c num-server-rounds=N).",
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Start a new run from the models of this one, with its settings where -c names no "
            "others.",
        ),
    ] = None,
    accept_changes: AcceptChanges = False,
    allow_code: AllowCode = None,
    with_local: Annotated[
        bool,
        typer.Option(
            "--with-local", help="Also train alone, on the same split and seed, and compare."
        ),
    ] = False,
    save_models: Annotated[
        bool, typer.Option(help="Save the personalized models in the run directory.")
    ] = False,
    assignments: Assignments = None,
    federation_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Flower's federation config, for the engine simulation; repeatable.",
        ),
    ] = None,
    per_client: Annotated[bool, typer.Option(help="Also print a table of all clients.")] = False,
    verbose: Annotated[bool, typer.Option(help="Show Flower's log.")] = False,
) -> None:
    """Run a method; show a progress bar and a table of results."""
    with one_clear_line():
        from fedkd_flwr.config import ConfigError
        from fedkd_flwr.config.toml_files import keys_of_own
        from fedkd_flwr.engines import check_engine, deployed_to, find_engine
        from fedkd_flwr.runs import load_run, upon_start
        from fedkd_flwr.server_app import check_run

        values = read_values(preset, assignments)
        if start_from is not None:
            values = upon_start(load_run(start_from, allow_code or ()), values)
        if output_dir is not None:
            values["output-dir"] = str(output_dir)
        if accept_changes:
            values["accept-changes"] = True
        superlink = deployed_to(engine)
        if superlink is not None:
            options = {
                "--resume": resume,
                "--start-from": start_from,
                "--with-local": with_local,
                "--save-models": save_models,
                "--federation-config": federation_config,
                "--per-client": per_client,
                "--verbose": verbose,
            }
            deploy(values, superlink, [name for name, value in options.items() if value])
            return
        find_engine(engine)
        if resume and start_from:
            raise ConfigError("--resume continues a run, --start-from begins a new one: choose.")
        if resume is None:
            configuration = new_configuration(values, save_models)
        else:
            configuration = continued_configuration(resume, values, save_models, allow_code or ())
        resources = read_assignments(federation_config)
        check_engine(engine, configuration, resources)
        given = {*read_assignments(assignments), *(keys_of_own(preset) if preset else ())}
        say_beside(configuration.ignored(given))
        alone = local_configuration(configuration) if with_local else None
        check_run(configuration)
        finished = run_with_progress(configuration, engine, resources, verbose)
        local = run_with_progress(alone, engine, resources, verbose) if alone else None
        if per_client:
            print_clients(finished)
        print_result(finished)
        print_gain(finished, local)


def deploy(values: Mapping[str, Any], superlink: str, options: Sequence[str]) -> None:
    """Check a config, then start a run on a SuperLink and show its log.

    Options that were given and have no effect in a deployment are refused.
    """
    from fedkd_flwr.config import ALL_CONNECTED, ConfigError, read_config
    from fedkd_flwr.engines import run_deployment

    if options:
        raise ConfigError(
            f"A deployment does not accept {', '.join(options)}: its nodes run already, and "
            "Flower's log is shown. Type settings with -c, such as -c resume=true."
        )
    configuration = read_config({**ALL_CONNECTED, **values})
    output_dir = configuration.run.output_dir
    if output_dir and not Path(output_dir).is_absolute():
        raise ConfigError(
            f"output-dir = {output_dir!r} must be an absolute path on the SuperLink's machine."
        )
    try:
        with ctrl_c_interrupts():
            run_deployment(configuration, superlink, say)
    except KeyboardInterrupt:
        follow = "`flwr list` shows it, `flwr stop RUN-ID` stops it."
        say_beside([f"The run continues on the SuperLink. {follow}"])
        raise typer.Exit(INTERRUPTED) from None


def new_configuration(values: Mapping[str, Any], save_models: bool) -> "Configuration":
    """Return the config of a new run, with absolute folders."""
    from fedkd_flwr.config import read_config
    from fedkd_flwr.engines import resolve_output

    configuration = resolve_output(read_config(values), Path.cwd() / "runs")
    if not save_models:
        return configuration
    models_dir = str(Path(configuration.run.output_dir) / "models")
    return configuration.with_run(models_dir=models_dir)


def local_configuration(configuration: "Configuration") -> "Configuration":
    """Return the config of the same clients training alone, in a directory beside the run's."""
    from fedkd_flwr.analysis.columns import REFERENCE
    from fedkd_flwr.config import OWN_SETTINGS, ConfigError
    from fedkd_flwr.server_app import check_run

    run = configuration.run
    if run.strategy == REFERENCE or run.resume:
        raise ConfigError(f"--with-local is for a new run of another method than {REFERENCE}.")
    common = {k: v for k, v in configuration.flat().items() if "." not in k and k != OWN_SETTINGS}
    place = {"output-dir": f"{run.output_dir}-{REFERENCE}", "state-dir": "", "models-dir": ""}
    alone = new_configuration({**common, **place, "strategy": REFERENCE}, save_models=False)
    check_run(alone)
    return alone


def continued_configuration(
    path: Path, values: Mapping[str, Any], save_models: bool, allow_code: Sequence[str]
) -> "Configuration":
    """Return the config with which a run is continued; print the settings that change."""
    from fedkd_flwr.engines import resumed
    from fedkd_flwr.runs import absolute, changed_settings, described, load_run

    models = {"models-dir": str(absolute(path) / "models")} if save_models else {}
    configuration = resumed(path, {**values, **models}, allow_code)
    changes = changed_settings(load_run(path), configuration)
    if changes:
        say(f"The run continues with {described(changes)}.")
    return configuration


def run_with_progress(
    configuration: "Configuration",
    engine: str,
    resources: Mapping[str, Any],
    verbose: bool,
) -> "Run":
    """Run with a progress bar; if it stops, print how to continue."""
    from fedkd_flwr.cli.progress import RunProgress
    from fedkd_flwr.clients.tracebacks import ClientCodeError
    from fedkd_flwr.engines import find_engine

    settings = configuration.run
    say(f"Run directory: {settings.output_dir}")
    progress = RunProgress(settings.strategy, settings.plan.num_server_rounds, verbose)
    try:
        with ctrl_c_interrupts(), progress:
            return find_engine(engine)(configuration, progress, resources)
    except KeyboardInterrupt:
        say_beside([interrupted(configuration, engine)])
        raise typer.Exit(INTERRUPTED) from None
    except ClientCodeError as error:
        say_beside("".join(traceback.format_exception(error.__cause__)).splitlines())
        say_beside([interrupted(configuration, engine)])
        raise


def interrupted(configuration: "Configuration", engine: str) -> str:
    """Return how far an interrupted run got, and the command that continues it."""
    from fedkd_flwr.runs import read_checkpoint

    directory = Path(configuration.run.output_dir)
    completed = read_checkpoint(directory).completed_rounds
    if not completed:
        return "Stopped before the end of the first round; there is nothing to continue."
    option = "" if engine == "in-process" else f" --engine {engine}"
    total = configuration.run.plan.num_server_rounds
    return (
        f"Stopped after round {completed} of {total}. "
        f"Continue with: fedkd run{option} --resume {shlex.quote(str(directory))}"
    )


def print_clients(finished: "Run") -> None:
    """Print each client's accuracy in the last round in which it was evaluated."""
    rows: dict[int, Mapping[str, Any]] = {
        row["partition_id"]: row for row in finished.client_rows if row.get("accuracy") is not None
    }
    evaluated = "to test" if _evaluated_split(finished) == "test" else "to validate"
    headings = ("client", "model", "samples to train", evaluated, "accuracy", "round")
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
    """Print the result table, the traffic, and which clients failed."""
    from fedkd_flwr.runs import failures_in_words

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
    split = _evaluated_split(finished)
    title = f"{summary['strategy']}: accuracy on each client's own {split} split"
    show_table(("at", *columns), rows, title, numbers=columns)
    say(
        f"{summary['numbers_up']:,} numbers up, {summary['numbers_down']:,} down; "
        f"{summary['failures']} failures; {summary['seconds']:.1f} s"
    )
    if failures := failures_in_words([finished]):
        say(f"Failures: {failures}")


def print_gain(finished: "Run", local: "Run | None") -> None:
    """Print mean and worst client, and how they compare with those that train alone."""
    last = (finished.summary or {}).get("last_round")
    if not last or last["accuracy_mean"] is None:
        return
    method = finished.config["strategy"]
    say(f"{method}: mean {last['accuracy_mean']:.1%}, worst client {last['accuracy_min']:.1%}.")
    if local is None:
        return
    from fedkd_flwr.analysis.columns import points
    from fedkd_flwr.analysis.comparison import compare

    compared = compare([finished, local])
    gain = compared.clients.query("method != 'local'")["gain"].dropna()
    alone = compared.table.loc["local"]
    say(f"local: mean {alone['accuracy']:.1%}, worst client {alone['clients_worst']:.1%}.")
    say(
        f"Over training alone: {points(gain.mean())} points. Of {len(gain)} clients, "
        f"{(gain > 0).sum()} gain and {(gain < 0).sum()} lose."
    )
    say("One seed gives no verdict. `fedkd sweep` runs several, and `fedkd compare` tests them.")


def _evaluated_split(finished: "Run") -> str:
    """Return which data of its clients a run was measured on; runs of 0.1 know no other."""
    return str(finished.config.get("evaluated-split", "test"))
