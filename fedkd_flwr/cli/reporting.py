"""The command that hands results around: ``fedkd report``."""

from pathlib import Path
from typing import Annotated

import typer

from fedkd_flwr.cli.output import one_clear_line, say


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The page; replaced if there.")
    ] = Path("report.html"),
) -> None:
    """Write runs on the same splits as one web page that needs no network."""
    with one_clear_line():
        from fedkd_flwr.report import require_extra, write_report

        require_extra()
        from fedkd_flwr.analysis.comparison import compare

        say(f"Report: {write_report(compare(runs), output)}")
