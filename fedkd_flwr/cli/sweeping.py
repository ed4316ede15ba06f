"""The command that runs many methods and settings: ``fedkd sweep``."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedkd_flwr.cli.interrupts import ctrl_c_interrupts
from fedkd_flwr.cli.options import AcceptChanges, Engine, read_assignments, read_choices
from fedkd_flwr.cli.output import one_clear_line, say, say_beside
from fedkd_flwr.cli.running import INTERRUPTED


def sweep(
    file: Annotated[
        Path,
        typer.Argument(help="TOML file with [base] and [grid], or a name of `fedkd list sweeps`."),
    ],
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder of the runs; by default runs/NAME-OF-THE-FILE.")
    ] = None,
    engine: Engine = "in-process",
    save_models: Annotated[
        bool, typer.Option(help="Save each run's personalized models in its directory.")
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="J",
            min=1,
            help="Runs at a time, each in its own process; on the machines of a Ray cluster "
            "if RAY_ADDRESS names one.",
        ),
    ] = 1,
    cpus_per_run: Annotated[
        int,
        typer.Option(
            metavar="C",
            min=0,
            show_default=False,
            help="Threads and CPUs of each run; by default its torch-threads, or 1.",
        ),
    ] = 0,
    gpus_per_run: Annotated[
        float,
        typer.Option(
            metavar="G", min=0, help="GPUs of each run with --jobs; 0.5 lets two runs share one."
        ),
    ] = 0.0,
    accept_changes: AcceptChanges = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("-c", metavar="KEY=VALUE", help="A setting of every run; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Do only the runs with this value, or one of several: strategy=local,kt-pfl. "
            "Repeatable.",
        ),
    ] = None,
) -> None:
    """Execute the unfinished runs of a sweep; interrupted ones continue."""
    with one_clear_line():
        from fedkd_flwr.cli.progress import SweepDisplay
        from fedkd_flwr.sweeps import refuse_replaced_values, run_sweep, sweep_folder

        settings, selection = read_assignments(assignments), read_choices(only)
        refuse_replaced_values(file, settings)
        if accept_changes:
            settings["accept-changes"] = True
        folder = sweep_folder(file, output_dir)
        say(f"Runs: {folder}")
        try:
            with ctrl_c_interrupts(), SweepDisplay() as display:
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
                    only=selection,
                )
        except KeyboardInterrupt:
            done = f"Stopped; {display.done} runs in {folder} are finished."
            say_beside([f"{done} Type the same command again to do the others."])
            raise typer.Exit(INTERRUPTED) from None
        if finished:
            say(f"Compare: fedkd compare {shlex.quote(str(finished[0].path.parent))}")
        if display.failed:
            raise RuntimeError(f"{display.failed} runs failed; see {folder / 'failures.jsonl'}.")
