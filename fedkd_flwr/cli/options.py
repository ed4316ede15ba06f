"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Preset = Annotated[
    Path | None,
    typer.Argument(help="A TOML file or a name of `fedkd list presets`, else the defaults."),
]

Assignments = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Overrides; repeatable.")
]

Engine = Annotated[
    str,
    typer.Option(
        help="in-process, simulation (Ray), or for run deployment:NAME, a SuperLink of Flower's "
        "config.toml."
    ),
]


def read_assignments(assignments: list[str] | None) -> dict[str, Any]:
    """Read every ``KEY=VALUE`` of a repeated option."""
    from fedkd_flwr.config_files import parse_assignment

    return dict(parse_assignment(text) for text in assignments or [])


def read_choices(choices: list[str] | None) -> dict[str, list[Any]]:
    """Read every ``KEY=VALUE`` of a repeated option, in which a key may have several values."""
    from fedkd_flwr.config_files import parse_assignment

    values: dict[str, list[Any]] = {}
    for name, value in map(parse_assignment, choices or []):
        values.setdefault(name, []).append(value)
    return values


def read_values(preset: Path | None, assignments: list[str] | None) -> dict[str, Any]:
    """Put together a preset and overrides, a flat run config that is not validated yet."""
    from fedkd_flwr.config_files import upon_preset

    values = read_assignments(assignments)
    return upon_preset(preset, values) if preset else values
