"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Preset = Annotated[
    Path | None,
    typer.Argument(help="TOML file or a name from `fedkd list presets`; by default all defaults."),
]

Assignments = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="A setting; repeatable.")
]

Engine = Annotated[
    str,
    typer.Option(
        help="in-process, simulation (Ray) or, for `run`, deployment:NAME with a SuperLink from "
        "Flower's config.toml."
    ),
]


def read_assignments(assignments: list[str] | None) -> dict[str, Any]:
    """Read every ``KEY=VALUE`` of a repeated option."""
    from fedkd_flwr.config_files import parse_assignment

    return dict(parse_assignment(text) for text in assignments or [])


def read_choices(choices: list[str] | None) -> dict[str, list[Any]]:
    """Read every ``KEY=VALUE`` of a repeated option; a key may occur with several values."""
    from fedkd_flwr.config_files import parse_assignment

    values: dict[str, list[Any]] = {}
    for name, value in map(parse_assignment, choices or []):
        values.setdefault(name, []).append(value)
    return values


def read_values(preset: Path | None, assignments: list[str] | None) -> dict[str, Any]:
    """Return a preset with overrides: a flat run config that is not validated yet."""
    from fedkd_flwr.config_files import upon_preset

    values = read_assignments(assignments)
    return upon_preset(preset, values) if preset else values
