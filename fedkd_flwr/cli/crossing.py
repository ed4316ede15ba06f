"""The command ``fedkd cross``."""

from pathlib import Path
from typing import Annotated

import typer

from fedkd_flwr.cli.options import AllowCode
from fedkd_flwr.cli.output import one_clear_line, say, say_beside, show_table


def cross(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    models_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the exported models; by default the one in the run's config."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the table to a .csv or .json file."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures of the matrices to this folder."),
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Evaluate each client's model on every client's test data."""
    with one_clear_line():
        from fedkd_flwr.analysis import cross as crossing

        if output is not None:
            crossing.require_format(output)
        crossed = crossing.cross(run, models_dir or "", allow_code=allow_code or ())
        text = crossed.rendered()
        headings = list(text.columns)
        show_table(headings, text.to_numpy().tolist(), numbers=headings)
        say(f"Mean accuracy: own test data {crossed.own:.1%}, others' {crossed.others:.1%}")
        for name in crossed.coefficients:
            say(crossed.sentence(name))
        if output is not None:
            say_beside([f"Written: {crossed.save(output)}"])
        if figures is not None:
            from fedkd_flwr.plots import plot_cross
            from fedkd_flwr.plots.files import write_figures

            drawn = [(f"{crossed.run.path.name}-cross", plot_cross(crossed))]
            say_beside(f"Figure: {path}" for path in write_figures(drawn, figures))
