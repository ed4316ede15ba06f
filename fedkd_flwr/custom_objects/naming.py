"""Python objects where a run config has names: ``run(models=TinyNet, dataset=(X, y))``.

An object that a module holds gets the name ``module:object``, which works in every engine. Any
other object is kept in this process under the name ``object:NAME``. The name has a digest of the
data, or of the code of a callable, so that two different objects have different names.
"""

import copy
import os
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedkd_flwr.config import ConfigError
from fedkd_flwr.config.run_config import flatten
from fedkd_flwr.custom_objects.digests import code_digest
from fedkd_flwr.custom_objects.importing import OBJECT, CustomObjectError, hold, name_in_module
from fedkd_flwr.data.custom_data import as_data_set
from fedkd_flwr.data.registry import BY_COLUMN, DATA
from fedkd_flwr.methods import METHODS, NAME, REGISTERED, Method
from fedkd_flwr.models.estimators import is_estimator, without_probabilities
from strategies.base import PersonalizedStrategy
from strategies.core.plan import Settings

STRATEGY = "strategy"  # key of a run config that names a method
DIGITS = 12  # hexadecimal digits of a digest that are part of a name


def name_objects(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return run config values with names instead of Python objects.

    Parameters
    ----------
    settings : mapping
        Flat run config values. ``models``, ``partition`` and other settings that name a callable
        may hold it, ``models`` also an estimator or a list of all these. ``strategy`` may hold
        what `register` returns, or a pair of a strategy and a client class. ``dataset`` and
        ``public-dataset`` may hold a pair of samples and labels, or a function that returns it.
        With a third array, the client of each sample, ``partition`` is ``by-column``.

    Returns
    -------
    dict
        The same values; each object is replaced by a name that stands for it in this process.

    Raises
    ------
    ConfigError, DataError, CustomObjectError
        If a value is no such object; in one sentence.

    Examples
    --------
    >>> fedkd_flwr.name_objects({"models": sklearn.ensemble.RandomForestClassifier})
    {'models': 'sklearn.ensemble._forest:RandomForestClassifier'}
    """
    names: dict[str, Any] = {}
    named = {key: _named(key, value, names) for key, value in flatten(settings).items()}
    if isinstance(data := settings.get(DATA[0]), tuple | list) and len(data) == 3:
        named.setdefault("partition", BY_COLUMN)
    return named


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
    if callable(value) or is_estimator(value):
        return _name_of_object(value, names)
    if hasattr(value, "fit"):
        raise ConfigError(f"{key}: {without_probabilities(type(value).__name__)}.")
    if type(value).__module__ != "builtins":
        raise ConfigError(
            f"{key} is a {type(value).__name__}; it should be a name, a number, a class, a "
            "function, or an estimator with fit and predict_proba."
        )
    return value


def _name_of_object(value: Any, names: dict[str, Any]) -> str:
    if name := name_in_module(value):
        return name
    label = f"{_label(value)}_{code_digest(value)[:DIGITS]}"
    taken = f"{OBJECT}:{label}"
    number = 1
    # Two objects of one call may differ in what their digest leaves out.
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
    given = as_data_set(key, value)
    parts = tuple(copy.deepcopy(part) for part in given if part is not None)
    return hold(lambda: parts, f"{label}_{given.digest[:DIGITS]}")


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
    given = (
        f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
    )
    raise ConfigError(
        f"strategy is {given}; it should be a name, what fedkd_flwr.register "
        "returns, or a pair of a strategy class and a client class."
    )


def _kebab_case(name: str) -> str:
    """Return ``FedRep`` as ``fed-rep``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("_", "-").strip("-")


def register(name: str, strategy: type[PersonalizedStrategy], client: type[Any]) -> Method:
    """Register a custom method under a name in this process.

    Assign the result to a variable of a module to use it in every engine, as
    ``strategy = "module:object"``.

    Parameters
    ----------
    name : str
        Lowercase letters, digits and dashes; not in `METHODS`. A second call replaces the first.
    strategy, client : type
        The classes for the server and the clients.

    Raises
    ------
    CustomObjectError
        With one sentence, if an argument is invalid.

    Examples
    --------
    >>> from fedkd_flwr.clients.parameters import ParameterClient
    >>> from strategies.fedper import FedPer
    >>> mine = fedkd_flwr.register("mine", FedPer, ParameterClient)
    >>> run = fedkd_flwr.run(strategy=mine, models="mlp", num_clients=3, num_server_rounds=1)
    """
    from fedkd_flwr.clients.base import PersonalClient  # deferred: it loads PyTorch

    if not NAME.fullmatch(name) or name in METHODS:
        raise CustomObjectError(
            f"{name!r} cannot be registered: use lowercase letters, digits and dashes, and not the "
            "name of a built-in method"
        )
    _require_subclass(name, "strategy", strategy, PersonalizedStrategy)
    _require_subclass(name, "client", client, PersonalClient)
    settings = strategy.record.settings_type
    if settings.model_fields:
        _require_own_table(name, settings)
    places = [f"{kind.__module__}:{kind.__qualname__}" for kind in (strategy, client)]
    method = Method(*places)
    # Classes defined in a notebook cannot be imported by name.
    vars(method).update(strategy=strategy, client=client)
    REGISTERED[name] = method
    return method


def _require_subclass(name: str, role: str, given: object, base: type) -> None:
    if not (isinstance(given, type) and issubclass(given, base)):
        raise CustomObjectError(
            f"{name}: {role} is {given!r}; it should be a subclass of {base.__name__}"
        )


def _require_own_table(name: str, settings: type[Settings]) -> None:
    """Refuse settings without a table, or with the table of unrelated settings."""
    if not NAME.fullmatch(settings.table):
        raise CustomObjectError(
            f"{name}: {settings.__name__} needs a table, such as table = {name!r}"
        )
    types = (method.record.settings_type for method in METHODS.values())
    owners = [kind for kind in types if kind.table == settings.table]
    if owners and not issubclass(settings, tuple(owners)):
        raise CustomObjectError(
            f"{name}: the table {settings.table} belongs to {owners[0].__name__}; choose another"
        )
