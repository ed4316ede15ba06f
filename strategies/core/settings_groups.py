"""Groups of settings of the run config, which are passed on as one object."""

import functools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

NO_EFFECT_ON_RESULTS = "no-effect-on-results"
"""Annotation of settings that do not change results, such as folders, devices and timeouts:
``Annotated[str, NO_EFFECT_ON_RESULTS]``."""


@dataclass(frozen=True)
class OnNodes:
    """Which values of a setting a node accepts, in a run that its operator has not approved.

    ``Annotated[float, OnNodes(0, 1)]``. A setting that says nothing, or `DEFAULT_ON_NODES`, has to
    have its default there. One with `NO_EFFECT_ON_RESULTS` may have any value.
    """

    low: float | str = -math.inf
    high: float | str = math.inf
    """The smallest and the largest number, or keys of the node config that have them."""

    off: float | None = None
    """A number besides the range, which turns off what the setting is for."""

    def accepts(self, value: Any, node: Mapping[str, Any]) -> bool:
        """Return whether a value, or each of several, lies in the range on a node."""
        low, high = (
            node[limit] if isinstance(limit, str) else limit for limit in (self.low, self.high)
        )
        values = value if isinstance(value, tuple) else [value]
        numbers = [one for one in values if isinstance(one, int | float)]
        return all(one == self.off or low <= one <= high for one in numbers)

    def __str__(self) -> str:
        if self == OnNodes():
            return "any"
        return f"{'' if self.off is None else f'{self.off:g}, or '}from {self.low} to {self.high}"


ANY_ON_NODES = OnNodes()  # annotation of settings that may have any value on a node

DEFAULT_ON_NODES = "default-on-nodes"
"""Annotation of settings that have to have their default on a node, unless it approves the run."""


def on_nodes(field: FieldInfo) -> OnNodes | None:
    """Return which values of a setting a node accepts; None for its default alone."""
    if DEFAULT_ON_NODES in field.metadata:
        return None
    ranges = [mark for mark in field.metadata if isinstance(mark, OnNodes)]
    if NO_EFFECT_ON_RESULTS in field.metadata:
        ranges.append(ANY_ON_NODES)
    return next(iter(ranges), None)


def kebab_case(name: str) -> str:
    """Return a field name as it is written in a run config, ``local_epochs`` → ``local-epochs``."""
    return name.replace("_", "-")


class SettingsGroup(BaseModel):
    """A group of validated, immutable settings.

    A field ``local_epochs`` is the flat key ``local-epochs``. A field that is itself a group has
    no key; its fields have.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab_case,
        populate_by_name=True,
        allow_inf_nan=False,
        # A run config may hold the number 13 for a text, such as a shape.
        coerce_numbers_to_str=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_kind(cls, value: Any, field: ValidationInfo) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("contains the character NUL, which names and paths cannot")
        kind = cls.model_fields[field.field_name or ""].annotation
        # Pydantic takes true for the number 1.
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            due = "a number" if kind in (int, float) else "text"
            raise ValueError(f"it should be {due}, not true or false")
        return value

    @classmethod
    @functools.cache
    def nested_groups(cls) -> dict[str, type["SettingsGroup"]]:
        """Return the fields that are groups themselves."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {
            name: kind
            for name, kind in kinds.items()
            if isinstance(kind, type) and issubclass(kind, SettingsGroup)
        }

    @classmethod
    def key_of(cls, name: str) -> str:
        """Return the flat key of a field."""
        return kebab_case(name)

    @classmethod
    def flat_keys(cls) -> list[str]:
        """Return the flat keys, in the order of their declaration."""
        return list(cls.fields_by_key())

    @classmethod
    def keys_without_effect(cls) -> list[str]:
        """Return the flat keys of the settings that are marked as `NO_EFFECT_ON_RESULTS`."""
        return [
            key
            for key, field in cls.fields_by_key().items()
            if NO_EFFECT_ON_RESULTS in field.metadata
        ]

    def flat(self) -> dict[str, Any]:
        """Return the values by their flat keys."""
        values: dict[str, Any] = {}
        for name, key in self._own_keys().items():
            value = getattr(self, name)
            values |= value.flat() if isinstance(value, SettingsGroup) else {key: value}
        return values

    def outside(self, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield keys whose values a node accepts in approved runs alone, and others."""
        values = self.flat()
        for key, field in self.fields_by_key().items():
            allowed = on_nodes(field)
            if allowed is None and values[key] != field.default:
                yield key, "its default"
            if allowed and not allowed.accepts(values[key], node):
                yield key, str(allowed)

    @classmethod
    @functools.cache
    def _own_keys(cls) -> dict[str, str]:
        """Return the flat key of each field by its name."""
        return {name: cls.key_of(name) for name in cls.model_fields}

    @classmethod
    @functools.cache
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """Return the field of each flat key, those of nested groups included."""
        fields: dict[str, FieldInfo] = {}
        groups = cls.nested_groups()
        for name, field in cls.model_fields.items():
            own = {cls.key_of(name): field}
            fields |= groups[name].fields_by_key() if name in groups else own
        return fields


class NoneOfTheAllowedError(ValueError):
    """A word that a setting does not allow; a similar allowed word is suggested."""

    def __init__(self, allowed: Collection[str], given: str) -> None:
        self.allowed = list(allowed)
        word = given.lower().replace("_", "-")
        close = get_close_matches(word, self.allowed, n=1, cutoff=0.65)
        all_words = f"is not one of {', '.join(self.allowed)}"
        reason = f"is unknown; did you mean {close[0]}?" if close else all_words
        super().__init__(f"{given!r} {reason}")


def first_refused(error: ValidationError, named: Callable[[str], str]) -> str:
    """Return the first refused value of a group, named by `named`, and why."""
    first = error.errors()[0]
    reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
    reason = reason.replace("a valid tuple", "a text, or a list of texts")
    return f"{named(str(first['loc'][0]))} = {first['input']!r}: {reason}"


def one_of(value: str, allowed: Collection[str]) -> str:
    """Return a word that is one of the allowed. Raises `NoneOfTheAllowedError` if it is not."""
    if value in allowed:
        return value
    raise NoneOfTheAllowedError(allowed, value)


def fitting(pattern: str, allowed: str) -> AfterValidator:
    """Return a validator of a text that a pattern fits as a whole; `allowed` says what it fits."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value):
            return value
        raise ValueError(f"it should be {allowed}")

    return AfterValidator(check)


def some_of(allowed: Collection[str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a validator that allows only these words and removes duplicates."""

    def check(value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one_of(word, allowed) for word in value))

    return check


def _split(value: Any) -> Any:
    if isinstance(value, str | float | int):
        return tuple(word.strip() for word in str(value).split(",") if word.strip())
    return value


Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A list of words, separated by commas in a run config."""


Numbers = Annotated[tuple[float, ...], BeforeValidator(_split)]
"""A list of numbers, separated by commas in a run config."""


def zero_or_at_least(smallest: float) -> AfterValidator:
    """Return a validator of a number that is 0, for nothing, or large enough."""

    def check(value: float) -> float:
        if 0 < value < smallest:
            raise ValueError(f"allowed are 0, for none, and numbers from {smallest:g} on")
        return value

    return AfterValidator(check)


def all_numbers(is_allowed: Callable[[float], bool], allowed: str) -> AfterValidator:
    """Return a validator of one or more numbers, each of them allowed; `allowed` says which."""

    def check(numbers: tuple[float, ...]) -> tuple[float, ...]:
        if numbers and all(map(is_allowed, numbers)):
            return numbers
        raise ValueError(f"it should be one or more numbers {allowed}, separated by commas")

    return AfterValidator(check)


@dataclass(frozen=True)
class SearchRange:
    """The range in which ``fedkd tune`` looks for a setting: ``Annotated[float, SearchRange(…)]``.

    With `log`, values are spread over orders of magnitude. Where the best value lies at an edge,
    the search widens the range within the limits of the setting.
    """

    low: float
    high: float
    log: bool = False
