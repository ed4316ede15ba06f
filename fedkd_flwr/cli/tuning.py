"""The command ``fedkd tune``: the best settings of each method, on validation data."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkd_flwr.cli.interrupts import ctrl_c_interrupts
from fedkd_flwr.cli.options import Assignments, Preset, read_values
from fedkd_flwr.cli.output import one_clear_line, say, say_beside, show_table
from fedkd_flwr.cli.running import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedkd_flwr.tuning import Tuned, Tuning


def tune(
    preset: Preset = None,
    methods: Annotated[
        str, typer.Option(help="Methods to tune, separated by commas; local is always included.")
    ] = "kt-pfl,perfed-ckt,persfl,fedavg",
    budget: Annotated[
        int,
        typer.Option(help="Gradient steps for each method, in whole trials of local."),
    ] = 27,
    seeds: Annotated[int, typer.Option(help="Tuning seeds; a trial is a mean over them.")] = 2,
    fresh_seeds: Annotated[
        int, typer.Option(help="Seeds of the sweep file that is written, none of them for tuning.")
    ] = 10,
    jobs: Annotated[int, typer.Option(help="Methods to search at a time.")] = 1,
    output_dir: Annotated[
        Path, typer.Option(help="Folder for studies, runs and the sweep file.")
    ] = Path("runs/tuning"),
    assignments: Assignments = None,
) -> None:
    """Find the best settings of each method on validation data, with equal budgets."""
    with one_clear_line():
        from fedkd_flwr import tuning
        from fedkd_flwr.engines import flower_log_level

        names = [name.strip() for name in methods.split(",") if name.strip()]
        values = read_values(preset, assignments)
        try:
            with ctrl_c_interrupts(), flower_log_level(logging.WARNING):
                tuned = tuning.tune(
                    values,
                    names,
                    output_dir,
                    budget=budget,
                    seeds=seeds,
                    fresh_seeds=fresh_seeds,
                    jobs=jobs,
                    on_method=lambda name: say_beside([f"{name}: searched"]),
                )
        except KeyboardInterrupt:
            say_beside([f"Stopped. Type the same command again to continue in {output_dir}."])
            raise typer.Exit(INTERRUPTED) from None
        show_tuning(tuned)


def show_tuning(tuned: "Tuning") -> None:
    """Print the best settings of each method, and what to type next."""
    from fedkd_flwr.analysis.columns import in_bytes

    headings = (
        "method", "validation", "95% interval", "trials", "search steps", "run steps", "exchanged",
    )  # fmt: skip
    rows = [
        (
            one.strategy,
            f"{one.accuracy:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            ", ".join([f"{one.trials}", *([f"{one.failed} failed"] if one.failed else [])]),
            f"{one.steps:,} ({one.steps / one.budget:.0%})",
            f"{one.run_steps:,}",
            in_bytes(one.bytes),
        )
        for one in tuned.methods
    ]
    show_table(headings, rows, numbers=headings[1:])
    for one in tuned.methods:
        chosen = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
        say(f"{one.strategy}: {chosen}")
        for note in one.notes:
            say(f"  {note}")
    say(answer(tuned.methods))
    say("To compare the methods on test data with fresh seeds:")
    say(f"  fedkd sweep {tuned.sweep}")


def answer(methods: "Sequence[Tuned]") -> str:
    """Say which method suits the data, and whether training alone does as well."""
    best = methods[0]
    alone = next(method for method in methods if method.strategy == "local")
    if best is alone:
        return "local is best on validation data: no exchange has helped here."
    gain = f"{100 * (best.accuracy - alone.accuracy):.1f} points above local"
    if alone.accuracy >= best.low:
        return (
            f"{best.strategy} is best on validation data, {gain}. That is within its interval, so "
            "local may do as well."
        )
    return (
        f"{best.strategy} is best on validation data, {gain}; the interval is over validation "
        "samples."
    )
