"""Every setting with its default, range and meaning, read from where it is declared.

Fields and limits are those of the slices of the run config, meanings those of their docstrings.
"""

import inspect
import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from docstring_parser import DocstringStyle, parse
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedkd_flwr.config import OWN_SETTINGS, ConfigError, RunConfig, method_tables
from fedkd_flwr.flat import as_scalar
from fedkd_flwr.methods import METHODS
from strategies.core.slices import NoneOfTheAllowedError, Slice, kebab_case

BOUNDS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))
"""Limits of a number as pydantic keeps them, and how they are written."""

KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}

NO_WORD = "?"
"""Is refused by every setting that has its words."""


@dataclass(frozen=True)
class Setting:
    """One setting of a run config.

    Attributes
    ----------
    key : str
        Flat name, ``kt-pfl.rho``.
    default : str
        As it is written in a run config.
    allowed : str
        Its range, or the words that it may be.
    meaning : str
        One or two sentences.
    """

    key: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """Settings that belong together.

    Attributes
    ----------
    title : str
        The question that they answer, or the methods that read them.
    settings : list of Setting
        In the order of their declaration.
    """

    title: str
    settings: list[Setting]


OF_OWN = Setting(
    OWN_SETTINGS,
    '""',
    "text",
    "Settings of a method of your own, as my-method.mu = 0.1, where Flower takes no other keys.",
)
"""The one key that no slice declares."""


def settings_reference(method: str = "") -> list[Section]:
    """Return the settings of all runs and of every method, or those of one method alone.

    Parameters
    ----------
    method : str
        Name of a method; empty for everything.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    if not method:
        return [*_common_sections(), *map(_method_section, method_tables().values())]
    if method not in METHODS:
        raise ConfigError(f"There is no method {method}; the methods are {', '.join(METHODS)}.")
    kind = METHODS[method].strategy.settings_type
    return [Section(f"Settings of {method}", _settings(kind))] if kind.flat_keys() else []


def _common_sections() -> list[Section]:
    kinds = RunConfig.slices().values()
    own = Section("The method, and where the run takes place", [*_settings(RunConfig), OF_OWN])
    return [own, *(Section(_title(kind), _settings(kind)) for kind in kinds)]


def _method_section(kind: type[Slice]) -> Section:
    readers = [name for name, m in METHODS.items() if m.strategy.settings_type is kind]
    return Section(f"Settings of {', '.join(readers)}", _settings(kind))


def _title(kind: type[Slice]) -> str:
    summary = parse(inspect.getdoc(kind) or "", DocstringStyle.NUMPYDOC).short_description or ""
    return summary.removesuffix(".")


def _settings(kind: type[Slice]) -> list[Setting]:
    meanings = _meanings(kind)
    slices = kind.slices()
    return [
        Setting(
            kind.key_of(name),
            _written(field.default),
            _allowed(kind, name, field),
            meanings.get(name, ""),
        )
        for name, field in kind.model_fields.items()
        if name not in slices
    ]


def _meanings(kind: type[Slice]) -> dict[str, str]:
    """Return what the docstrings of a slice and of its bases say of each field."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        # A class without a docstring of its own must not speak for its base.
        docstring = parse(vars(base).get("__doc__") or "", DocstringStyle.NUMPYDOC)
        for parameter in docstring.params:
            for name in parameter.arg_name.split(","):
                meanings[name.strip()] = _in_one_line(parameter.description or "", kind)
    return meanings


def _in_one_line(text: str, kind: type[Slice]) -> str:
    """Return a description without line ends and marks, fields named as in a run config."""
    plain = re.sub(r"`+", "", " ".join(text.split()))
    return re.sub(
        r"\w+_\w+",
        lambda word: kebab_case(word[0]) if word[0] in kind.model_fields else word[0],
        plain,
    )


def _written(value: Any) -> str:
    """Return a value as TOML has it."""
    scalar = as_scalar(value)
    if isinstance(scalar, bool):
        return str(scalar).lower()
    return f'"{scalar}"' if isinstance(scalar, str) else repr(scalar)


def _allowed(kind: type[Slice], name: str, field: FieldInfo) -> str:
    """Return the range of a field, or the words that it may be."""
    annotation = field.annotation
    if typing.get_origin(annotation) is Literal:
        return ", ".join(map(str, typing.get_args(annotation)))
    words = _words(kind, name)
    if annotation in KINDS and not words:
        limits = " and ".join(_limits(field.metadata))
        return f"{KINDS[annotation]} {limits}".rstrip()
    if annotation is str:
        return ", ".join(words)
    return f"some of {', '.join(words)}" if words else "texts, separated by commas"


def _limits(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{sign} {getattr(limit, attribute):g}"
        for limit in metadata
        for bound, attribute, sign in BOUNDS
        if isinstance(limit, bound)
    ]


def _words(kind: type[Slice], name: str) -> Sequence[str]:
    """Return the words that a field may be, as it names them when it refuses one."""
    try:
        kind.model_validate({name: NO_WORD})
    except ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(reason, NoneOfTheAllowedError):
            return reason.allowed
    return ()


HEADER = """# Settings

What `fedkd run -c KEY=VALUE`, presets and `[tool.flwr.app.config]` may hold. Written by
`fedkd list settings > docs/reference/settings.md`, from the declarations in the code.
"""


def in_markdown(sections: Iterable[Section]) -> str:
    """Return the page docs/reference/settings.md, a table for each section."""
    return "\n".join([HEADER, *(_table(section) for section in sections)])


def _table(section: Section) -> str:
    rows = [f"| `{s.key}` | `{s.default}` | {s.allowed} | {s.meaning} |" for s in section.settings]
    head = [f"## {section.title}", "", "| setting | default | allowed | meaning |"]
    return "\n".join([*head, "|---|---|---|---|", *rows, ""])
