"""Commands of whoever operates nodes or uses their models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkd_flwr.cli.options import find_modules_here
from fedkd_flwr.cli.output import one_clear_line, say, show_table

if TYPE_CHECKING:
    import pandas as pd

FILE_ERRORS = (OSError, ValueError)
"""Errors about files, model cards and bundles, whose message is for the user."""


def nodes(run: Annotated[Path, typer.Argument(help="Run directory, finished or not.")]) -> None:
    """Show how each client took part in a run: last rounds, failures and their reasons."""
    with one_clear_line():
        from fedkd_flwr.analysis.nodes import nodes_table, progress
        from fedkd_flwr.runs import load_run

        opened = load_run(run)
        table, how_far = nodes_table(opened), progress(opened)
    say(how_far)
    headings = ("client", "name", "model", "last asked", "last valid", "asked", "failures", "s")
    table["seconds"] = [f"{taken:.1f}" if taken == taken else "-" for taken in table["seconds"]]
    show_table(headings, _cells(table.iloc[:, :7]), numbers=headings[3:])
    for client, server_round, reason in _cells(table[["last_failed", "last_failure"]]):
        if reason:
            say(f"client {client}, round {server_round}: {reason}")


def _cells(table: "pd.DataFrame") -> list[list[str]]:
    """Return rows as text; it comes from other machines, and could hold commands for a terminal."""
    return [
        ["".join(filter(str.isprintable, str(cell))) for cell in row] for row in table.itertuples()
    ]


def predict(
    model: Annotated[Path, typer.Argument(help="CLIENT.safetensors, with its card beside it.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, and folders of them.")],
    builder: Annotated[
        str,
        typer.Option(
            help="Of a custom model, as module:object. It is imported: name only what you trust."
        ),
    ] = "",
) -> None:
    """Classify images with a personalized model; print CSV with class and probability."""
    with one_clear_line(*FILE_ERRORS):
        import csv
        import sys

        from fedkd_flwr.custom_objects.importing import find_custom
        from fedkd_flwr.export import files_at
        from fedkd_flwr.export import predict as classify

        built = None
        if builder:
            find_modules_here()
            built = find_custom(builder)
        predictions = classify(model, files_at(images), built)
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(("file", "class", "probability"))
        lines.writerows((p.file, p.label, f"{p.probability:.4f}") for p in predictions)


def stop() -> None:
    """Stop the SuperLink that `flwr run` leaves running in the background."""
    with one_clear_line():
        import psutil

        from fedkd_flwr.engines.superlink import ADDRESS, stop_background_superlinks

        try:
            stopped = stop_background_superlinks()
        except psutil.AccessDenied as error:
            raise RuntimeError(
                f"Process {error.pid}, the SuperLink on {ADDRESS}, cannot be stopped: "
                "permission denied."
            ) from None
        if not stopped:
            say(f"No background SuperLink of `flwr run` is running on {ADDRESS}.")
        for process_id in stopped:
            say(f"Stopped the SuperLink on {ADDRESS} (process {process_id}), and its runs.")
