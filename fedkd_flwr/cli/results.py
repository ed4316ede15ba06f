"""Commands on finished runs: compare, report, cross, genotypes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkd_flwr.cli.options import AllowCode
from fedkd_flwr.cli.output import (
    console,
    echo,
    one_clear_line,
    say,
    say_beside,
    say_figures,
    say_paragraph,
    show_table,
)

if TYPE_CHECKING:
    import pandas as pd

    from fedkd_flwr.analysis.comparison import Comparison

LAYOUTS = ("table", "markdown", "latex", "csv")
"""How `compare` can print its table."""

FigureFormat = Annotated[str, typer.Option(help="png, or svg or pdf for papers.")]


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.")],
    layout: Annotated[
        str,
        typer.Option(
            "--format",
            show_default=False,
            help="table, markdown, latex or csv; a table on a terminal, else Markdown.",
        ),
    ] = "",
    per_client: Annotated[
        bool, typer.Option(help="Print each client's accuracy too, a mean over seeds.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="On a terminal: all columns, verdicts in words, and all notes."
        ),
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also print what each method gains over each other one.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write figures to this folder.")
    ] = None,
    figure_format: FigureFormat = "png",
    against: Annotated[
        str, typer.Option(metavar="METHOD", help="Compare every method with this one.")
    ] = "local",
    best_evaluation: Annotated[
        bool,
        typer.Option(
            "--best-evaluation",
            help="Show the model with the best validation accuracy, such as that as received.",
        ),
    ] = False,
    by_code: Annotated[
        bool,
        typer.Option("--by-code", help="Show each version of your own code in a row of its own."),
    ] = False,
    across: Annotated[
        bool, typer.Option("--across", help="Each folder is one comparison; rank over them.")
    ] = False,
    per_seed: Annotated[
        bool, typer.Option("--per-seed", help="With --across: each seed counts as a comparison.")
    ] = False,
    allow_code: AllowCode = None,
) -> None:
    """Compare runs on the same splits with each other, and with local training."""
    with one_clear_line():
        from fedkd_flwr.analysis import comparison
        from fedkd_flwr.config import ConfigError

        if per_seed and not across:
            raise ConfigError("--per-seed belongs to --across; type both, or neither.")
        if across:
            of_one_comparison = {
                "--format": layout,
                "--explain": explain,
                "--per-client": per_client,
                "--pairs": pairs,
                "--figures": figures,
                "--best-evaluation": best_evaluation,
                "--by-code": by_code,
                "--allow-code": allow_code,
            }
            if given := [name for name, value in of_one_comparison.items() if value]:
                raise ConfigError(
                    f"--across does not take {', '.join(given)}; leave that out, or compare one "
                    "folder without --across."
                )
            from fedkd_flwr.analysis.across import compare_across

            echo(compare_across(runs, against, per_seed).to_markdown())
            return
        layout = layout or ("table" if console().is_terminal else "markdown")
        if layout not in LAYOUTS:
            raise ConfigError(f"--format {layout} is not one of {', '.join(LAYOUTS)}.")
        code = allow_code or ()
        compared = comparison.compare(
            runs, against, best_evaluation=best_evaluation, by_code=by_code, allow_code=code
        )
        print_comparison(compared, layout, explain)
        if per_client:
            print_clients(compared, layout)
        if pairs:
            print_pairs(compared, layout)
        if figures is not None:
            from fedkd_flwr.plots import save_figures

            say_figures(save_figures(compared, figures, figure_format))


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The page; an existing file is replaced."
        ),
    ] = Path("report.html"),
    allow_code: AllowCode = None,
) -> None:
    """Write a web page that compares runs on the same splits; it works offline."""
    with one_clear_line():
        from fedkd_flwr.analysis.comparison import compare
        from fedkd_flwr.report import write_report

        say(f"Report: {write_report(compare(runs, allow_code=allow_code or ()), output)}")


def print_comparison(compared: "Comparison", layout: str, explain: bool) -> None:
    """Print the table of a comparison, its verdicts and its notes."""
    if layout == "table":
        from fedkd_flwr.cli.tables import show_comparison

        show_comparison(compared, explain)
        return
    echo(getattr(compared, f"to_{layout}")())
    if layout == "csv":
        say_beside([*compared.verdicts, *compared.notes])


def print_clients(compared: "Comparison", layout: str) -> None:
    """Print each client's accuracy with each method."""
    from fedkd_flwr.analysis import rendering

    means = rendering.by_client(compared.clients, compared.table.index)
    if layout != "table":
        say("")
    print_rows(means if layout == "csv" else rendering.rendered_clients(means), layout)


def print_pairs(compared: "Comparison", layout: str) -> None:
    """Print what each method gains over each other one."""
    from fedkd_flwr.analysis import rendering
    from fedkd_flwr.analysis.effects import matrix_of_pairs, notes_on_pairs, rows_of_pairs
    from fedkd_flwr.config import ConfigError

    matrix = matrix_of_pairs(compared.pairs, list(compared.table.index))
    if matrix.empty:
        raise ConfigError("--pairs needs runs of at least three methods; the table has all pairs.")
    notes = notes_on_pairs(compared.pairs)
    if layout == "table":
        print_rows(matrix, layout)
        for note in notes:
            say_paragraph(f"- {note}")
        return
    say("")
    if layout == "csv":
        print_rows(rows_of_pairs(compared.pairs), layout)
        say_beside(notes[1:])
        return
    echo(getattr(rendering, f"in_{layout}")(matrix, notes))


def print_rows(rows: "pd.DataFrame", layout: str) -> None:
    """Print rows with a first column of names."""
    from fedkd_flwr.analysis import rendering
    from fedkd_flwr.cli.tables import show_columns

    if layout == "table":
        show_columns(rows)
    elif layout == "csv":
        echo(rows.to_csv(index=False))
    else:
        echo(getattr(rendering, f"in_{layout}")(rows))


def cross(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    models_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the exported models; by default the one in the run's config."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures of the matrices to this folder."),
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Evaluate each client's model on every client's test data."""
    with one_clear_line():
        from fedkd_flwr.analysis.cross import cross as evaluate_all

        crossed = evaluate_all(run, models_dir or "", allow_code=allow_code or ())
        text = crossed.rendered()
        headings = list(text.columns)
        show_table(headings, text.to_numpy().tolist(), numbers=headings)
        say(f"Mean accuracy: own test data {crossed.own:.1%}, others' {crossed.others:.1%}")
        if crossed.distilled:
            of = f"{len(crossed.distilled)} of {len(crossed.accuracies)}"
            say(f"The models of {of} clients are those after the last distillation.")
        for name in crossed.coefficients:
            say(crossed.sentence(name))
        if figures is not None:
            from fedkd_flwr.plots import plot_cross
            from fedkd_flwr.plots.axes import write_figures

            drawn = [(f"{crossed.run.path.name}-cross", plot_cross(crossed))]
            say_figures(write_figures(drawn, figures))


def genotypes(
    run: Annotated[Path, typer.Argument(help="Run directory of fedkma, fedkma-uniform or fednas.")],
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write one figure per client to this folder.")
    ] = None,
    figure_format: FigureFormat = "png",
    allow_code: AllowCode = None,
) -> None:
    """Print every client's architecture, and draw them."""
    with one_clear_line():
        from fedkd_flwr.analysis.client_models import client_genotypes
        from fedkd_flwr.runs import load_run

        stored = load_run(run, allow_code or ())
        for partition_id, genotype in enumerate(client_genotypes(stored)):
            say(f"client {partition_id}: {genotype.to_text()}")
        if figures is not None:
            from fedkd_flwr.plots import draw_genotypes

            say_figures(draw_genotypes(stored, figures, file_format=figure_format))
