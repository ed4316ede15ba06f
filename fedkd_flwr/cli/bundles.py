"""Commands of a node's operator: ``fedkd bundles`` and ``fedkd superexec``."""

from pathlib import Path
from typing import Annotated

import typer

from fedkd_flwr.cli.operating import FILE_ERRORS
from fedkd_flwr.cli.output import errors, one_clear_line, say

bundles = typer.Typer(
    help="Approve the app bundles that this node executes.",
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
def list_approved(list_file: ListFile = None) -> None:
    """List the approved bundles."""
    from fedkd_flwr.bundles.approved import approved_file, read_approvals

    file = list_file or approved_file()
    with one_clear_line(*FILE_ERRORS):
        approvals = read_approvals(file)
    if not approvals:
        say(f"{file} approves no bundle; this node executes none.", to=errors())
    for approval in approvals:
        say(approval.digest, f"  {approval.remark}")


@bundles.command()
def revoke(
    digest: Annotated[str, typer.Argument(help="The digest, or its first digits.")],
    list_file: ListFile = None,
) -> None:
    """Remove a bundle from the list; the node refuses it from the next message on."""
    from fedkd_flwr.bundles.approved import approved_file
    from fedkd_flwr.bundles.approved import revoke as remove

    with one_clear_line(*FILE_ERRORS):
        removed = remove(digest, list_file or approved_file())
    say("removed ", removed.digest, f"  {removed.remark}")


def superexec(
    context: typer.Context,
    fresh_processes: Annotated[
        bool, typer.Option("--fresh-processes", help="Start a new Python for each message.")
    ] = False,
) -> None:
    """Execute approved bundles for a SuperNode; also takes the options of flower-superexec."""
    from fedkd_flwr.bundles.forking import ForkingUnsafeError, run_superexec

    try:
        run_superexec(context.args, fresh_processes=fresh_processes)
    except ForkingUnsafeError as error:
        say(("Error:", "bold red"), f" {error}", to=errors())
        raise typer.Exit(1) from None
