"""Commands that say what there is to work with: ``fedkd doctor`` and ``fedkd list``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkd_flwr.cli.options import Assignments, Preset, read_values
from fedkd_flwr.cli.output import one_clear_line, say, show_table

if TYPE_CHECKING:
    from fedkd_flwr.methods import Method


def doctor(
    preset: Preset = None,
    assignments: Assignments = None,
    node_config: Annotated[
        str, typer.Option(help="As for flower-supernode, such as 'partition-id=0 model=\"lenet\"'.")
    ] = "",
) -> None:
    """Check a node's setup before it joins a federation."""
    with one_clear_line():
        from flwr.common.config import parse_config_args

        from fedkd_flwr.doctor import check_node

        values = read_values(preset, assignments)
        findings = check_node(values, parse_config_args([node_config]))
    for finding in findings:
        mark = ("ok ", "green") if finding.ok else ("bad", "bold red")
        say(mark, f"  {finding.check}: {finding.text}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def list_names() -> None:
    """List methods, models, data sets, partitions, presets and run config keys."""
    from fedkd_flwr.config import known_names
    from fedkd_flwr.data.catalogue import DATASETS, PARTITIONS
    from fedkd_flwr.methods import FAMILIES, METHODS
    from fedkd_flwr.models.registry import MODELS

    headings = ("strategy", "exchanges", "from", "models", "public data", "validation data")
    for family in FAMILIES:
        rows = [(name, *_told(m)) for name, m in METHODS.items() if m.family == family]
        show_table(headings, rows, title=f"Methods that exchange {family}")
    files = sorted(str(path) for path in Path("conf").glob("*/*.toml"))
    sweeps = [file for file in files if file.startswith("conf/sweeps/")]
    presets = [file for file in files if file not in sweeps]
    for title, names in (
        ("Models", MODELS),
        ("Data sets", DATASETS),
        ("Partitions", PARTITIONS),
        ("Presets", presets),
        ("Sweeps", sweeps),
        ("Run config keys", known_names()),
    ):
        say((f"{title}:", "bold"), f" {', '.join(names)}")


def _told(method: "Method") -> tuple[str, ...]:
    """Return what a method exchanges, where it comes from, and what it takes and needs."""
    strategy = method.strategy
    public = "on the server" if strategy.distils_on_server else "needed"
    return (
        method.exchanged,
        method.paper,
        "one for all" if strategy.needs_one_model else "may differ",
        public if strategy.needs_public_data or strategy.distils_on_server else "",
        "needed" if strategy.needs_validation_data else "",
    )
