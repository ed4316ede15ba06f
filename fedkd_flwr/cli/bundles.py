"""Commands of a node's operator: ``fedkd start-node``, ``bundles``, ``runs``, ``superexec``."""

from pathlib import Path
from typing import Annotated

import typer

from fedkd_flwr.cli.operating import FILE_ERRORS
from fedkd_flwr.cli.options import Assignments, read_values
from fedkd_flwr.cli.output import errors, one_clear_line, say

bundles = typer.Typer(
    help="Approve the app bundles that this node executes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

runs = typer.Typer(
    help="Approve single runs that this node takes part in.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Bundle = Annotated[Path, typer.Argument(help="A .fab file, as `flwr build` writes it.")]
ListFile = Annotated[
    Path | None,
    typer.Option(
        "--list",
        help="The node's list; by default FEDKD_APPROVED_BUNDLES or /etc/fedkd/approved-bundles.",
    ),
]
RunList = Annotated[
    Path | None,
    typer.Option(
        "--list", help="As approved-runs of the node config; by default /etc/fedkd/approved-runs."
    ),
]
Digest = Annotated[str, typer.Argument(help="The digest, or its first digits.")]


@bundles.command()
def show(bundle: Bundle) -> None:
    """Show a bundle's digest, name and version. Nothing in it is executed."""
    from fedkd_flwr.bundles.approved import describe

    with one_clear_line(*FILE_ERRORS):
        found = describe(bundle)
    say(found.digest, f"  {found.remark}")


@bundles.command()
def approve(bundle: Bundle, list_file: ListFile = None) -> None:
    """Approve a bundle that you have read; the node executes it from then on."""
    from fedkd_flwr.bundles.approved import approve as add
    from fedkd_flwr.bundles.approved import approved_file

    with one_clear_line(*FILE_ERRORS):
        found = add(bundle, list_file or approved_file())
    say(found.digest, f"  {found.remark}")


@bundles.command("list")
def list_bundles(list_file: ListFile = None) -> None:
    """List the approved bundles."""
    from fedkd_flwr.bundles.approved import approved_file

    _list(list_file or approved_file(), "bundle; this node executes none")


@bundles.command("revoke")
def revoke_bundle(digest: Digest, list_file: ListFile = None) -> None:
    """Remove a bundle from the list; the node refuses it from the next message on."""
    from fedkd_flwr.bundles.approved import approved_file

    _revoke(digest, list_file or approved_file())


@runs.command("approve")
def approve_run(
    preset: Annotated[Path, typer.Argument(help="TOML file with the settings of the run.")],
    assignments: Assignments = None,
    list_file: RunList = None,
) -> None:
    """Approve a run as its settings are; print what it sends. It imports code that it names."""
    from fedkd_flwr.bundles import approved_runs
    from fedkd_flwr.clients.policy import NodePolicy

    with one_clear_line(*FILE_ERRORS):
        file = list_file or approved_runs.APPROVED_RUNS
        found, configuration = approved_runs.approve_run(read_values(preset, assignments), file)
    for sentence in approved_runs.consequences(configuration, NodePolicy().flat()):
        say(sentence)
    say(found.digest, f"  {found.remark}")


@runs.command("list")
def list_runs(list_file: RunList = None) -> None:
    """List the approved runs."""
    from fedkd_flwr.bundles.approved_runs import APPROVED_RUNS

    _list(list_file or APPROVED_RUNS, "run")


@runs.command("revoke")
def revoke_run(digest: Digest, list_file: RunList = None) -> None:
    """Remove a run from the list; the node refuses it from the next message on."""
    from fedkd_flwr.bundles.approved_runs import APPROVED_RUNS

    _revoke(digest, list_file or APPROVED_RUNS)


def _list(file: Path, what: str) -> None:
    from fedkd_flwr.bundles.approved import read_approvals

    with one_clear_line(*FILE_ERRORS):
        approvals = read_approvals(file)
    if not approvals:
        say(f"{file} approves no {what}.", to=errors())
    for approval in approvals:
        say(approval.digest, f"  {approval.remark}")


def _revoke(digest: str, file: Path) -> None:
    from fedkd_flwr.bundles.approved import revoke

    with one_clear_line(*FILE_ERRORS):
        removed = revoke(digest, file)
    say("removed ", removed.digest, f"  {removed.remark}")


FreshProcesses = Annotated[
    bool, typer.Option("--fresh-processes", help="Start a new Python for each message.")
]


def start_node(
    context: typer.Context,
    node_config: Annotated[
        str,
        typer.Option(help="Its node config: a TOML file, or a text such as 'partition-id=0'."),
    ],
    port: Annotated[int, typer.Option(help="Of this machine; 0 for a free one.")] = 0,
    fresh_processes: FreshProcesses = False,
) -> None:
    """Start a node that executes approved bundles alone; takes the options of flower-supernode."""
    with one_clear_line(*FILE_ERRORS):
        from fedkd_flwr.bundles.approved import approved_file, read_approvals
        from fedkd_flwr.bundles.forking import start_node
        from fedkd_flwr.clients.node import check_keys
        from fedkd_flwr.clients.policy import read_policy
        from strategies.core.flower import parse_config_args

        values = parse_config_args([node_config])
        check_keys(values)
        say(f"policy: {read_policy(values).described()}")
        say(f"{len(read_approvals(approved_file()))} approved bundles in {approved_file()}")
        options = ["--node-config", node_config, *context.args]
        start_node(options, port, fresh_processes=fresh_processes)


def superexec(context: typer.Context, fresh_processes: FreshProcesses = False) -> None:
    """Execute approved bundles for a SuperNode; also takes the options of flower-superexec."""
    from fedkd_flwr.bundles.forking import run_superexec

    run_superexec(context.args, fresh_processes=fresh_processes)
