"""Python objects where a run config has names: ``run(models=TinyNet, dataset=(X, y))``.

An object that a module holds gets the name ``module:object``, which works in every engine. Any
other object is kept in this process under the name ``object:NAME``. Data get a name with a
digest of their content, so that other data have another name.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedkd_flwr.config import ConfigError
from fedkd_flwr.data.own import as_data_set, content_digest
from fedkd_flwr.methods import METHODS, REGISTERED, Method, register
from fedkd_flwr.own import OBJECT, hold, name_in_module

DATA = ("dataset", "public-dataset")
"""Keys of a run config that name data."""

STRATEGY = "strategy"
"""Key of a run config that names a method."""

DIGITS = 12
"""Hexadecimal digits of a digest that are part of a name."""


def name_objects(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return run config values with names in place of Python objects.

    Parameters
    ----------
    settings : mapping
        Flat run config values. ``models``, ``partition`` and other settings that name a callable
        may hold it, ``models`` also a list of names and callables. ``strategy`` may hold
        what `register` returns, or a pair of a strategy and a client class. ``dataset`` and
        ``public-dataset`` may hold a pair of samples and labels, or a function that returns it.

    Returns
    -------
    dict
        The same values; each object is replaced by a name that stands for it in this process.

    Raises
    ------
    ConfigError, DataError, OwnError
        If a value is no such object; in one sentence.
    """
    names: dict[str, Any] = {}
    return {key: _named(key, value, names) for key, value in settings.items()}


def _named(key: str, value: Any, names: dict[str, Any]) -> Any:
    """Return a value with names; `names` holds the objects that have one so far."""
    if isinstance(value, str | int | float | os.PathLike):
        return value
    if key == STRATEGY:
        return _name_of_method(value)
    if key in DATA:
        return _name_of_data(key, value)
    if isinstance(value, list | tuple):
        return tuple(_named(key, item, names) for item in value)
    if isinstance(value, nn.Module):
        raise ConfigError(
            f"{key}: this is a network; pass its class or a function (shape, classes) -> "
            "torch.nn.Module, since every client gets a network of its own."
        )
    return _name_of_callable(value, names) if callable(value) else value


def _name_of_callable(value: Callable[..., Any], names: dict[str, Any]) -> str:
    if name := name_in_module(value):
        return name
    label = _label(value)
    taken = f"{OBJECT}:{label}"
    number = 1
    # Two lambdas of one call are two objects.
    while names.setdefault(taken, value) is not value:
        number += 1
        taken = f"{OBJECT}:{label}_{number}"
    return hold(value, taken.partition(":")[2])


def _label(value: object) -> str:
    qualified = str(getattr(value, "__qualname__", type(value).__name__))
    return re.sub(r"\W", "", qualified.rpartition(".")[2], flags=re.ASCII) or "unnamed"


def _name_of_data(key: str, value: Any) -> str:
    """Return the name of a function of a module, or of data by their content."""
    label = "data"
    if callable(value):
        name = name_in_module(value)
        # A notebook's cell may define another function by the same name.
        if name and not name.startswith("__main__:"):
            return name
        label, value = _label(value), value()
    # Clones, since the caller may change the arrays later.
    samples, labels = (part.clone() for part in as_data_set(key, value))
    name = f"{label}_{content_digest(samples, labels)[:DIGITS]}"
    return hold(lambda: (samples, labels), name)


def _name_of_method(value: Any) -> str:
    if isinstance(value, Method):
        for name, method in {**METHODS, **REGISTERED}.items():
            if method is value:
                return name
        raise ConfigError(
            "strategy: another method was registered later under the same name; pass what the "
            "last call of register returned."
        )
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], type):
        name = _kebab_case(value[0].__name__)
        register(name, *value)
        return name
    raise ConfigError(
        f"strategy is a {type(value).__name__}; it should be a name, what fedkd_flwr.register "
        "returns, or a pair of a strategy class and a client class."
    )


def _kebab_case(name: str) -> str:
    """Return ``FedRep`` as ``fed-rep``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("_", "-").strip("-")
