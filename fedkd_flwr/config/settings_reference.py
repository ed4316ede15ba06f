"""Reference of all settings: default, range and meaning, read from their declarations.

Fields and limits come from the groups of the run config, meanings from the docstrings below fields,
which are read here alone: Pydantic would read them at each start.
"""

import ast
import functools
import inspect
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedkd_flwr.config import OWN_SETTINGS, ConfigError, RunConfig, settings_types
from fedkd_flwr.config.run_config import as_scalar
from fedkd_flwr.custom_objects.importing import CustomObjectError
from fedkd_flwr.methods import METHODS, REGISTERED, find_method
from strategies.core.plan import Settings
from strategies.core.settings_groups import (
    NoneOfTheAllowedError,
    SettingsGroup,
    kebab_case,
    on_nodes,
)

if TYPE_CHECKING:
    import pandas as pd

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
"""Limits of a number as pydantic names them, and the sign that is shown."""

KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}

NO_WORD = "?"  # a word that no setting with a list of allowed words accepts


@dataclass(frozen=True)
class Setting:
    """One setting of a run config; `on_nodes` is what a node accepts without approval."""

    key: str
    default: str
    allowed: str
    meaning: str
    on_nodes: str = "default"


@dataclass(frozen=True)
class Section:
    """Settings that belong together, and keys that their methods read in other tables."""

    title: str
    settings: list[Setting]
    also_read: tuple[str, ...] = ()


OF_OWN = Setting(
    OWN_SETTINGS,
    '""',
    "text",
    "Settings of a custom method, such as my-method.mu = 0.1, under flwr run, which accepts only "
    "the keys of pyproject.toml.",
)
"""The only key that no group declares."""


def settings_reference(method: str = "") -> list[Section]:
    """Return the settings of all runs and methods, each in its own table; or of one method."""
    if not method:
        return _without_repetition(_sections())
    try:
        kind = find_method(method).record.settings_type
    except NoneOfTheAllowedError:
        raise ConfigError(
            f"There is no method {method}; the methods are {', '.join(METHODS)}, or your own as "
            "module:object."
        ) from None
    except CustomObjectError as error:
        raise ConfigError(f"{error}.") from None
    return [Section(f"Settings of {method}", _settings(kind))] if kind.flat_keys() else []


def settings(method: str = "") -> "pd.DataFrame":
    """Return the settings of all runs and methods, or those that one method alone has.

    Parameters
    ----------
    method : str, optional
        A method, such as ``kt-pfl`` or ``my_method:mine``.

    Returns
    -------
    DataFrame
        One row per key: ``default``, ``allowed`` and ``meaning``.

    Raises
    ------
    ConfigError
        If there is no such method.

    Examples
    --------
    >>> fedkd_flwr.settings("kt-pfl").loc["kt-pfl.temperature", "default"]
    '3.0'
    """
    import pandas as pd  # deferred: a run config is read without data frames

    listed = [setting for section in settings_reference(method) for setting in section.settings]
    columns = [field.name for field in fields(Setting)]
    return pd.DataFrame(listed, columns=columns).set_index("key")


def _groups_in(kind: type[SettingsGroup]) -> Iterator[type[SettingsGroup]]:
    for part in kind.nested_groups().values():
        yield part
        yield from _groups_in(part)


def _sections() -> list[Section]:
    types = settings_types()
    bases = dict.fromkeys(
        base
        for kind in types
        for base in kind.__mro__
        if issubclass(base, Settings) and vars(base).get("table") and base not in types
    )
    own = Section("The method, and where the run takes place", [*_settings(RunConfig), OF_OWN])
    shared = [*_groups_in(RunConfig), *bases]
    sections = [own, *(Section(_title(kind), _settings(kind)) for kind in shared)]
    for kind in types:
        listed = {setting.key for section in sections for setting in section.settings}
        readers = [name for name, m in METHODS.items() if m.record.settings_type is kind]
        settings = _settings(kind)
        new = [s for s in settings if s.key not in listed and s.key.startswith(f"{kind.table}.")]
        also_read = tuple(setting.key for setting in settings if setting not in new)
        sections.append(Section(f"Settings of {', '.join(readers)}", new, also_read))
    return sections


def _without_repetition(sections: Sequence[Section]) -> list[Section]:
    """Replace a meaning that an earlier key has by a reference to that key."""
    first_key: dict[str, str] = {}

    def distinct(setting: Setting) -> Setting:
        first = first_key.setdefault(setting.meaning, setting.key)
        if first == setting.key:
            return setting
        table = setting.key.partition(".")[0]
        return replace(setting, meaning=f"As {first}, for {table}.")

    return [replace(s, settings=[distinct(setting) for setting in s.settings]) for s in sections]


def _title(kind: type[SettingsGroup]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0].removesuffix(".")


def _settings(kind: type[SettingsGroup]) -> list[Setting]:
    meanings = _meanings(kind)
    groups = kind.nested_groups()
    return [
        Setting(
            kind.key_of(name),
            _written(field.default),
            _allowed(kind, name, field),
            field.description or meanings.get(name, ""),
            str(on_nodes(field) or "default").removeprefix("from "),
        )
        for name, field in kind.model_fields.items()
        if name not in groups
    ]


def _meanings(kind: type[SettingsGroup]) -> dict[str, str]:
    """Return the docstrings below the fields of a group and of its bases."""
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, SettingsGroup)]
    texts = {name: text for base in bases for name, text in _texts_below_fields(base)}
    return {name: _in_one_line(text, kind) for name, text in texts.items()}


@functools.cache
def _texts_below_fields(kind: type[SettingsGroup]) -> list[tuple[str, str]]:
    try:
        (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # a class that was typed in has no source
        return []
    found = []
    for statements in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match statements:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found.append((name, text))
    return found


def _in_one_line(text: str, kind: type[SettingsGroup]) -> str:
    """Return a description in one line without markup, with fields named as in a run config."""
    plain = re.sub(r"`+", "", " ".join(text.split()))
    return re.sub(
        r"\w+_\w+",
        lambda word: kebab_case(word[0]) if word[0] in kind.model_fields else word[0],
        plain,
    )


def _written(value: Any) -> str:
    scalar = as_scalar(value)
    if isinstance(scalar, bool):
        return str(scalar).lower()
    return f'"{scalar}"' if isinstance(scalar, str) else repr(scalar)


def _allowed(kind: type[SettingsGroup], name: str, field: FieldInfo) -> str:
    annotation = field.annotation
    if typing.get_origin(annotation) is Literal:
        return ", ".join(map(str, typing.get_args(annotation)))
    words = _words(kind, name)
    if annotation in KINDS and not words:
        limits = " and ".join(_limits(field.metadata))
        return f"{KINDS[annotation]} {limits}".rstrip()
    if annotation is str:
        return ", ".join(words)
    return f"some of {', '.join(words)}" if words else "values, separated by commas"


def _limits(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{sign} {getattr(limit, bound):g}"
        for limit in metadata
        for bound, sign in BOUNDS.items()
        if hasattr(limit, bound)
    ]


def _words(kind: type[SettingsGroup], name: str) -> Sequence[str]:
    """Return the allowed words of a field, as listed when it refuses one."""
    try:
        kind.model_validate({name: NO_WORD})
    except ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(reason, NoneOfTheAllowedError):
            # The reference does not depend on what this process has registered.
            return [word for word in reason.allowed if word not in REGISTERED]
    return ()
