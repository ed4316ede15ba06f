"""Commands that show what is available: ``fedkd doctor`` and ``fedkd list``."""

from collections.abc import Iterable
from typing import Annotated

import typer

from fedkd_flwr.cli.options import Assignments, Preset, read_values
from fedkd_flwr.cli.output import (
    console,
    echo,
    errors,
    one_clear_line,
    say,
    say_paragraph,
    show_table,
)


def doctor(
    preset: Preset = None,
    assignments: Assignments = None,
    node_config: Annotated[
        str,
        typer.Option(
            help="Its node config: a TOML file, or a text such as 'partition-id=0 model=\"lenet\"'."
        ),
    ] = "",
) -> None:
    """Check on a node whether it can take part in a run."""
    with one_clear_line():
        from fedkd_flwr.config import ALL_CONNECTED
        from fedkd_flwr.engines.doctor import check_node
        from strategies.core.flower import parse_config_args

        values = {**ALL_CONNECTED, **read_values(preset, assignments)}
        findings = check_node(values, parse_config_args([node_config]))
    for finding in findings:
        mark = ("ok ", "green") if finding.ok else ("bad", "bold red")
        say(mark, f"  {finding.check}: {finding.text}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def list_names(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            help="methods, models, data, presets, sweeps, settings or commands; by default the "
            "first four. Into a file, methods, settings and commands are pages of the reference."
        ),
    ] = "",
    method: Annotated[
        str,
        typer.Argument(
            help="After `settings`: show only the settings of this method, such as kt-pfl or "
            "my_method:mine."
        ),
    ] = "",
) -> None:
    """List methods, models, data sets, presets, sweeps, settings (of METHOD alone), or commands."""
    from fedkd_flwr.cli.reference import commands_in_markdown, methods_in_markdown
    from fedkd_flwr.config import ConfigError

    with one_clear_line():
        if what and what not in (known := (*LISTS, "settings", "commands")):
            raise ConfigError(f"There is no list {what}; type one of {', '.join(known)}.")
        if method and what != "settings":
            raise ConfigError(
                f"The list {what} takes no method. Type: fedkd list settings {method}"
            )
        if what == "settings":
            _list_settings(method)
        elif what == "commands":
            echo(commands_in_markdown(context.find_root().command))
        elif what == "methods" and not console().is_terminal:
            echo(methods_in_markdown())
        else:
            for name in [what] if what else FIRST:
                LISTS[name]()
    if not what:
        say(("Sweeps:", "bold"), " fedkd list sweeps")
        say(("Settings:", "bold"), " fedkd list settings [METHOD]")


def _list_methods() -> None:
    from fedkd_flwr.cli.reference import source_of
    from fedkd_flwr.methods import METHODS
    from strategies.core.method_record import FAMILIES

    headings = ("strategy", "exchanges", "from", "needs")
    for family in FAMILIES:
        rows = [
            (name, m.record.exchanged, source_of(m.record), ", ".join(m.record.needs))
            for name, m in METHODS.items()
            if m.record.family == family
        ]
        show_table(headings, rows, title=f"Methods that exchange {family}")


def _list_models() -> None:
    from fedkd_flwr.models.registry import MODELS

    _say_names("Models", MODELS)
    say(
        ("Your own models:", "bold"),
        " module:object, a network or an estimator such as sklearn.ensemble:RandomForestClassifier",
    )


def _list_data() -> None:
    from fedkd_flwr.data.registry import DATASETS, PARTITIONS

    _say_names("Data sets", DATASETS)
    _say_names("Partitions", PARTITIONS)


def _list_presets() -> None:
    from fedkd_flwr.config.toml_files import preset_names

    _say_names("Presets, for run", preset_names())


def _list_sweeps() -> None:
    from fedkd_flwr.config.toml_files import sweep_names

    _say_names("Sweeps, for sweep", sweep_names())


LISTS = {
    "methods": _list_methods,
    "models": _list_models,
    "data": _list_data,
    "presets": _list_presets,
    "sweeps": _list_sweeps,
}
FIRST = ("methods", "models", "data", "presets")
"""The lists that are shown if none is asked for."""


def _say_names(title: str, names: Iterable[str]) -> None:
    say((f"{title}:", "bold"), f" {', '.join(names)}")


def _list_settings(method: str) -> None:
    """Print settings as paragraphs on a terminal, otherwise as Markdown tables."""
    from fedkd_flwr.cli.reference import settings_in_markdown
    from fedkd_flwr.config.settings_reference import settings_reference

    sections = settings_reference(method)
    if not sections:
        say(f"{method} has no settings of its own.", to=errors())
    if not console().is_terminal:
        echo(settings_in_markdown(sections))
        return
    for section in sections:
        say((f"\n{section.title}", "bold underline"))
        for setting in section.settings:
            default = f" = {setting.default}"
            say_paragraph((setting.key, "bold"), default, (f"    {setting.allowed}", "green"))
            say_paragraph(setting.meaning, indent=4)
    if method:
        say("\nSettings of all methods: fedkd list settings")
