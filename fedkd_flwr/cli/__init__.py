"""The command line, ``fedkd``: one module per group of commands.

Every command imports what it needs when it is called, so that ``fedkd --help`` loads neither
PyTorch nor Flower.
"""

from fedkd_flwr.cli.interrupts import ctrl_c_ends_the_process

with ctrl_c_ends_the_process():
    from typing import TYPE_CHECKING, Any

    import typer
    import typer.core

    from fedkd_flwr.cli.bundles import bundles, runs, start_node, superexec
    from fedkd_flwr.cli.operating import nodes, predict, stop
    from fedkd_flwr.cli.options import find_modules_here
    from fedkd_flwr.cli.results import (
        compare,
        cross,
        genotypes,
        report,
    )
    from fedkd_flwr.cli.running import run
    from fedkd_flwr.cli.setup import doctor, list_names
    from fedkd_flwr.cli.sweeping import sweep
    from fedkd_flwr.cli.tuning import tune

if TYPE_CHECKING:
    from click import Context, HelpFormatter  # typer's own dependency

# Help is plain text: Rich takes time to load, and takes [grid] for markup.
typer.core.HAS_RICH = False


class CommandLine(typer.Typer):
    """The commands. Ctrl-C ends the process, except where a command handles it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command."""
        with ctrl_c_ends_the_process():
            return super().__call__(*args, **kwargs)


READERS = (compare, report, cross, genotypes, nodes)
"""Commands that read runs, which may be somebody else's and lie in the working directory."""

COMMANDS = (run, sweep, tune, *READERS, doctor, predict, stop)

GROUPS = {
    "Run": ("run", "sweep", "tune", "stop"),
    "Compare": ("compare", "report", "cross"),
    "Deploy": ("doctor", "start-node", "nodes", "runs", "bundles", "superexec"),
    "Look": ("list", "genotypes", "predict"),
}
"""The commands as ``fedkd --help`` shows them."""


class CommandsInGroups(typer.core.TyperGroup):
    """The program, whose help shows the commands in `GROUPS`, each with its whole sentence."""

    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write a list of commands for each group."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, (self.commands[name].help or "").split("\n\n")[0]) for name in names]
                )


app = CommandLine(
    help="Personalized federated learning by knowledge transfer.",
    cls=CommandsInGroups,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def prepare(context: typer.Context) -> None:
    """Let a command that is given names find modules of the working directory."""
    if context.invoked_subcommand not in {command.__name__ for command in READERS}:
        find_modules_here()


for command in COMMANDS:
    app.command()(command)
app.command("list")(list_names)
app.add_typer(bundles, name="bundles")
app.add_typer(runs, name="runs")
# Flower reads the other options.
passing_on = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=passing_on)(start_node)
app.command(context_settings=passing_on)(superexec)
