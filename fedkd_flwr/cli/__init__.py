"""The command line, ``fedkd``: one module a group of commands.

Every command imports what it needs when it is called, so that ``fedkd --help`` loads neither
PyTorch nor Flower.
"""

import sys
from pathlib import Path

import typer
import typer.core

from fedkd_flwr.cli.crossing import cross
from fedkd_flwr.cli.reporting import report
from fedkd_flwr.cli.results import compare, genotypes, personalize, rank
from fedkd_flwr.cli.running import run, sweep
from fedkd_flwr.cli.setup import doctor, list_names

# Help is plain text: Rich takes time to load, and takes [grid] for markup.
typer.core.HAS_RICH = False

app = typer.Typer(
    help="Personalized federated learning by knowledge transfer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def find_modules_here() -> None:
    """Let modules of the working directory be found, as ``python -m`` does."""
    sys.path.append(str(Path.cwd()))


for command in (run, compare, cross, rank, report, sweep, personalize, doctor, genotypes):
    app.command()(command)
app.command("list")(list_names)
