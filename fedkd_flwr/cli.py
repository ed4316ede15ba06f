"""The command line, ``fedkd``."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from flwr.common.config import parse_config_args
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedkd_flwr.analysis.comparison import compare
from fedkd_flwr.analysis.genotypes import client_genotypes
from fedkd_flwr.analysis.newcomers import personalize
from fedkd_flwr.config import (
    ConfigError,
    Configuration,
    known_names,
    parse_assignment,
    read_config,
    read_toml,
)
from fedkd_flwr.data.catalogue import DATASETS, PARTITIONS, DataError
from fedkd_flwr.doctor import check_node
from fedkd_flwr.engines import (
    flower_log_level,
    resolve_output,
    resumed,
    run_in_process,
    run_simulation,
)
from fedkd_flwr.methods import METHODS
from fedkd_flwr.models.registry import MODELS
from fedkd_flwr.runs import Run, RunDirectoryError, load_run
from fedkd_flwr.server_app import check_run
from fedkd_flwr.sweeps import SweepProgress, run_sweep
from strategies.core.replies import TooFewRepliesError

app = typer.Typer(
    help="Personalized federated learning by knowledge transfer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

USER_ERRORS = (ConfigError, DataError, RunDirectoryError, TooFewRepliesError, RuntimeError)
"""Errors whose message is a sentence for the user."""


@contextmanager
def one_clear_line() -> Iterator[None]:
    """Turn an error that is meant for the user into one line and exit status 1."""
    try:
        yield
    except USER_ERRORS as error:
        errors.print(f"[bold red]Error:[/] {error}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from None


@app.command()
def run(
    preset: Annotated[Path | None, typer.Argument(help="TOML preset, else the defaults.")] = None,
    engine: Annotated[str, typer.Option(help="in-process or simulation (Ray).")] = "in-process",
    clients: Annotated[
        int | None, typer.Option(help="Clients to start; as many as the preset needs if left out.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="The run directory.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue the stopped run in a directory.")
    ] = None,
    save_models: Annotated[
        bool, typer.Option(help="Export personalized models into the run directory.")
    ] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Overrides; repeatable.")
    ] = None,
    federation_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Flower's federation config, for the simulation engine."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Show Flower's log.")] = False,
) -> None:
    """Run a method, with a progress bar and a table of results."""
    with one_clear_line():
        if resume is not None:
            configuration = resumed(resume)
        else:
            configuration = new_configuration(preset, output_dir, save_models, assignments or [])
        check_clients(configuration, clients)
        check_run(configuration)
        resources = dict(parse_assignment(text) for text in federation_config or [])
        finished = run_with_progress(configuration, engine, clients, resources, verbose)
    print_result(finished)


def new_configuration(
    preset: Path | None, output_dir: Path | None, save_models: bool, assignments: list[str]
) -> Configuration:
    """Put together preset, overrides and folders of a new run."""
    values = read_toml(preset) if preset else {}
    values.update(parse_assignment(text) for text in assignments)
    if output_dir is not None:
        values["output-dir"] = str(output_dir)
    configuration = resolve_output(read_config(values), Path.cwd() / "runs")
    if not save_models:
        return configuration
    models_dir = str(Path(configuration.run.output_dir) / "models")
    changed = configuration.run.model_copy(update={"models_dir": models_dir})
    return configuration.model_copy(update={"run": changed})


def check_clients(configuration: Configuration, clients: int | None) -> None:
    """Refuse to start fewer clients than the run needs.

    Raises
    ------
    ConfigError
        With the number that is needed.
    """
    needed = configuration.run.plan.num_clients
    if clients is not None and clients < needed:
        raise ConfigError(
            f"The run needs {needed} clients and --clients starts {clients}; to change the "
            f"experiment itself, write -c num-clients={clients}."
        )


def run_with_progress(
    configuration: Configuration,
    engine: str,
    clients: int | None,
    resources: Mapping[str, Any],
    verbose: bool,
) -> Run:
    """Run on the chosen engine under a progress bar: round, accuracy, time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed}/{task.total}  {task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        total = configuration.run.plan.num_server_rounds
        task = progress.add_task(configuration.run.strategy, total=total, accuracy="")

        def on_round(row: Mapping[str, Any]) -> None:
            accuracy = row["accuracy_mean"]
            text = "" if accuracy is None else f"accuracy {accuracy:.4f}"
            progress.update(task, completed=row["round"], accuracy=text)

        def on_line(line: str) -> None:
            if verbose or "WARNING" in line:
                progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

        if engine == "in-process":
            level = logging.INFO if verbose else logging.WARNING
            return run_in_process(configuration, on_round, clients, level)
        if engine == "simulation":
            return run_simulation(configuration, on_round, on_line, clients, resources)
    raise ConfigError(f"--engine {engine} is none of the allowed in-process, simulation.")


def print_result(finished: Run) -> None:
    """Print the result table and the absolute path of the run directory."""
    summary = finished.summary or {}
    table = Table(title=f"{summary['strategy']}: accuracy on each client's own test split")
    for name in ("at", "round", "mean", "std", "worst", "best", "weighted"):
        table.add_column(name, justify="left" if name == "at" else "right")
    for label, key in (("last round", "last_round"), ("best validation", "validation_round")):
        result = summary.get(key)
        if not result:
            continue
        numbers = (result[f"accuracy_{name}"] for name in ("mean", "std", "min", "max", "weighted"))
        table.add_row(label, f"{result['round']:.0f}", *(f"{number:.4f}" for number in numbers))
    console.print(table)
    console.print(
        f"{summary['numbers_up']:,} numbers up, {summary['numbers_down']:,} down; "
        f"{summary['failures']} failures; {summary['seconds']:.1f} s",
        highlight=False,
    )
    console.print(f"Run directory: {finished.path}", soft_wrap=True, highlight=False)


@app.command("compare")
def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.")],
    layout: Annotated[str, typer.Option("--format", help="markdown, latex or csv.")] = "markdown",
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write figures there as PNG files.")
    ] = None,
) -> None:
    """Put runs on the same splits side by side, and against local training."""
    with one_clear_line():
        if layout not in ("markdown", "latex", "csv"):
            raise ConfigError(f"--format {layout} is none of the allowed markdown, latex, csv.")
        comparison = compare(runs)
        typer.echo(getattr(comparison, f"to_{layout}")(), nl=False)
        if layout == "csv":
            print_lines([*comparison.verdicts, *comparison.notes])
        if figures is not None:
            from fedkd_flwr.plots import save_figures  # deferred: matplotlib is slow to load

            print_lines(f"Figure: {path}" for path in save_figures(comparison, figures))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines beside the result, which alone goes to standard output."""
    for line in lines:
        errors.print(line, soft_wrap=True, highlight=False, markup=False)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="TOML file with [base] and [grid].")],
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder of the runs; runs/NAME-OF-THE-FILE if left out.")
    ] = None,
    engine: Annotated[str, typer.Option(help="in-process or simulation (Ray).")] = "in-process",
    assignments: Annotated[
        list[str] | None,
        typer.Option("-c", metavar="KEY=VALUE", help="Settings of every run; repeatable."),
    ] = None,
) -> None:
    """Do the runs of a sweep that are not done yet."""
    failed: list[str] = []

    def on_run(progress: SweepProgress) -> None:
        if progress.state == "failed":
            failed.append(progress.name)
        result = (progress.run.summary or {})["last_round"] if progress.run else None
        told = f"accuracy {result['accuracy_mean']:.4f}" if result else progress.error
        line = f"{progress.number}/{progress.total} {progress.name} {progress.state} {told}"
        console.print(line.rstrip(), soft_wrap=True, highlight=False, markup=False)

    with one_clear_line():
        settings = dict(parse_assignment(text) for text in assignments or [])
        finished = run_sweep(file, output_dir, engine, on_run, settings)
        if finished:
            folder = finished[0].path.parent
            console.print(f"Compare: fedkd compare {folder}", soft_wrap=True, highlight=False)
        if failed:
            raise RuntimeError(f"{len(failed)} runs failed; failures.jsonl beside them says why.")


@app.command("personalize")
def personalize_newcomer(
    run: Annotated[Path, typer.Argument(help="Run directory of persfl or persfl-gd.")],
    partition: Annotated[
        int | None, typer.Option(help="Share of the run's data that is the newcomer's.")
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="The newcomer's own folder of images or Parquet file.")
    ] = None,
    models_dir: Annotated[
        Path | None, typer.Option(help="Write the personalized model there.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Overrides; repeatable.")
    ] = None,
) -> None:
    """Personalize for a client that joins after the training, from stored global models."""
    with one_clear_line(), flower_log_level(logging.WARNING):
        settings = dict(parse_assignment(text) for text in assignments or [])
        newcomer = personalize(run, partition, data_path or "", **settings)
        table = Table("accuracy", "lambda", "T", "teacher round", "teacher", "last global model")
        table.add_row(
            f"{newcomer.accuracy:.4f}",
            f"{newcomer.imitation:g}",
            f"{newcomer.temperature:g}",
            str(newcomer.teacher_round),
            f"{newcomer.teacher_accuracy:.4f}",
            f"{newcomer.global_accuracy:.4f}",
        )
        console.print(table)
        if models_dir is not None:
            console.print(f"Model: {newcomer.save(models_dir)}", soft_wrap=True, highlight=False)


@app.command()
def doctor(
    preset: Annotated[Path | None, typer.Argument(help="TOML preset, else the defaults.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Overrides; repeatable.")
    ] = None,
    node_config: Annotated[
        str, typer.Option(help="As for flower-supernode, such as 'partition-id=0 model=\"lenet\"'.")
    ] = "",
) -> None:
    """Check a node's setup before it joins a federation."""
    with one_clear_line():
        values = read_toml(preset) if preset else {}
        values.update(parse_assignment(text) for text in assignments or [])
        node = parse_config_args([node_config])
        findings = check_node(values, node)
    for finding in findings:
        mark = "[green]ok[/]  " if finding.ok else "[bold red]bad[/] "
        console.print(f"{mark} {finding.check}: {finding.text}", soft_wrap=True, highlight=False)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command("genotypes")
def show_genotypes(
    run: Annotated[Path, typer.Argument(help="Run directory of fedkma or fednas.")],
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw one PNG a client there.")
    ] = None,
) -> None:
    """Print every client's architecture, and draw them."""
    with one_clear_line():
        stored = load_run(run)
        for partition_id, genotype in enumerate(client_genotypes(stored)):
            line = f"client {partition_id}: {genotype.to_text()}"
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        if figures is not None:
            from fedkd_flwr.plots import draw_genotypes  # deferred: matplotlib is slow to load

            print_lines(f"Figure: {path}" for path in draw_genotypes(stored, figures))


@app.command("list")
def list_names() -> None:
    """List methods, models, data sets, partitions, presets and run config keys."""
    methods = Table("strategy", "exchanges", "from", title="Methods")
    for name, method in METHODS.items():
        methods.add_row(name, method.exchanged, method.paper)
    console.print(methods)
    files = sorted(str(path) for path in Path("conf").glob("*/*.toml"))
    sweeps = [file for file in files if file.startswith("conf/sweeps/")]
    presets = [file for file in files if file not in sweeps]
    for title, names in (
        ("Models", MODELS),
        ("Data sets", DATASETS),
        ("Partitions", PARTITIONS),
        ("Presets", presets),
        ("Sweeps", sweeps),
        ("Run config keys", known_names()),
    ):
        console.print(f"[bold]{title}:[/] {', '.join(names)}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    app()
