"""Arguments and options that several commands share."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def find_modules_here() -> None:
    """Let modules of the working directory be found, as ``python -m`` does.

    In a run directory none is found: it may come from somebody else, and a module there could
    have the name of a package that is not installed.
    """
    here = Path.cwd()
    if not any(map(_is_run, (here, *here.parents))):
        sys.path.append(str(here))


def _is_run(folder: Path) -> bool:
    try:
        return "config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _name_code(packages: list[str] | None) -> list[str]:
    """Let the packages that the user names be found in the working directory."""
    if packages:
        find_modules_here()
    return packages or []


Preset = Annotated[
    Path | None,
    typer.Argument(help="TOML file or a name from `fedkd list presets`; by default all defaults."),
]

Assignments = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="A setting; repeatable.")
]

AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        callback=_name_code,
        help="Let a run's config import code of this package; repeatable. Only where you trust it.",
    ),
]

AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Continue or keep runs of other code of your own, and of another major version of the "
        "project, Flower or PyTorch.",
    ),
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
    from fedkd_flwr.config.toml_files import parse_assignment

    return dict(parse_assignment(text) for text in assignments or [])


def read_choices(choices: list[str] | None) -> dict[str, list[Any]]:
    """Read every ``KEY=VALUE`` of a repeated option; a key may occur with several values."""
    from fedkd_flwr.config.toml_files import parse_assignment

    values: dict[str, list[Any]] = {}
    for name, value in map(parse_assignment, choices or []):
        values.setdefault(name, []).append(value)
    return values


def read_values(preset: Path | None, assignments: list[str] | None) -> dict[str, Any]:
    """Return a preset with overrides: a flat run config that is not validated yet."""
    from fedkd_flwr.config.toml_files import upon_preset

    values = read_assignments(assignments)
    return upon_preset(preset, values) if preset else values
