"""The command that writes a web page: ``fedkd report``."""

from pathlib import Path
from typing import Annotated

import typer

from fedkd_flwr.cli.options import AllowCode
from fedkd_flwr.cli.output import one_clear_line, say


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
        from fedkd_flwr.report import require_extra, write_report

        require_extra()
        from fedkd_flwr.analysis.comparison import compare

        say(f"Report: {write_report(compare(runs, allow_code=allow_code or ()), output)}")
