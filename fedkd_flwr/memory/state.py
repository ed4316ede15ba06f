"""The state of a method's client: a dataclass of tensors, numbers and dicts of them by str."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedkd_flwr.memory.memory import OF_SESSION, Memory
from strategies.core.state import saved_fields


@dataclass(kw_only=True)
class State:
    """The state of a client whose method keeps nothing of its own, and the base of all others."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field."""
        if name not in type(self).__dataclass_fields__:
            raise AttributeError(f"`{name}` is no field of {type(self).__qualname__}; declare it")
        super().__setattr__(name, value)


AnyState = TypeVar("AnyState", bound=State)

Versions = list[tuple[str, Any, int]]
"""Parts of a field by name, each with the number of changes of a tensor in place."""


class StoredState:
    """A client's state, read from its memory and saved there.

    A part of the memory that holds a field is named after the field. Tensors are copies on the
    device, and may be changed in place. `begin` returns the state before the first message, for
    what the memory does not hold. Raises `TypeError` if a field has the name of something that
    every client keeps.
    """

    def __init__(
        self, kind: type[State], memory: Memory, device: str, begin: Callable[[], State]
    ) -> None:
        if taken := [f.name for f in saved_fields(kind) if _group(f.name) in OF_SESSION]:
            raise TypeError(f"{kind.__qualname__}: every client keeps {taken[0]}; rename the field")
        hints = get_type_hints(kind)
        stored = {
            field.name: _read(hints[field.name], memory, _group(field.name), device)
            for field in saved_fields(kind)
        }
        found = {name: value for name, value in stored.items() if value is not None}
        if len(found) == len(stored):
            self.value = kind(**found)
        else:
            self.value = begin()
            for name, value in found.items():
                setattr(self.value, name, value)
        self._as_read = {name: _versions(value) for name, value in found.items()}

    def save(self, memory: Memory) -> None:
        """Save the changed fields in a memory."""
        for field in saved_fields(self.value):
            name, value = field.name, getattr(self.value, field.name)
            if not _is_unchanged(self._as_read.get(name, []), _versions(value)):
                _save(memory, _group(name), value, f"{type(self.value).__qualname__}.{name}")
            self._as_read[name] = _versions(value)


def _group(name: str) -> str:
    """Return the name of a field in a memory, as in ``private-weight``."""
    return name.replace("_", "-")


def _read(hint: Any, memory: Memory, group: str, device: str) -> Any:
    """Return the value of a field, or None if the memory has none."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) in (Union, UnionType):
        return _read(kinds[0], memory, group, device)
    if (tensors := memory.load(group)) is not None:
        copies = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        return copies[group] if hint is Tensor else copies
    numbers = memory.load_numbers(group)
    if get_origin(hint) is dict:
        return dict(numbers) if group in memory.numbers else None
    return hint(numbers[group]) if group in numbers else None


def _save(memory: Memory, group: str, value: Any, name: str) -> None:
    if value is None or (isinstance(value, Mapping) and not value):
        memory.forget(group)
    elif isinstance(value, Tensor):
        memory.save(group, {group: value})
    elif isinstance(value, int | float):
        memory.save_numbers(group, {group: value})
    elif _is_dict_of(value, Tensor):
        memory.save(group, value)
    elif _is_dict_of(value, int | float):
        memory.save_numbers(group, value)
    else:
        raise TypeError(
            f"{name} is of type {type(value).__name__}; a client's state holds tensors, numbers, "
            "and dicts of them by str"
        )


def _is_dict_of(value: Any, kind: type | UnionType) -> bool:
    return isinstance(value, Mapping) and all(isinstance(part, kind) for part in value.values())


def _versions(value: Any) -> Versions:
    """Return what shows whether a field is changed, by assignment or in place."""
    parts = value.items() if isinstance(value, Mapping) else [("", value)]
    return [(name, part, _changes(part)) for name, part in parts]


def _changes(part: Any) -> int:
    return part._version if torch.is_tensor(part) and not part.is_inference() else 0


def _is_unchanged(before: Versions, now: Versions) -> bool:
    if len(before) != len(now):
        return False
    pairs = zip(before, now, strict=True)
    return all(a == b and one is other and x == y for (a, one, x), (b, other, y) in pairs)
