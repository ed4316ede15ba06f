"""Registration of custom methods: a name for a strategy, a client and settings of one's own."""

from typing import Any

from fedkd_flwr.custom_objects.importing import CustomObjectError
from fedkd_flwr.methods import METHODS, NAME, REGISTERED, Method
from strategies.base import PersonalizedStrategy
from strategies.core.plan import Settings


def register(
    name: str,
    strategy: type[PersonalizedStrategy],
    client: type[Any],
    settings: type[Settings] | None = None,
) -> Method:
    """Register a custom method under a name in this process.

    Assign the result to a variable of a module to use it in every engine, as
    ``strategy = "module:object"``.

    Parameters
    ----------
    name : str
        Lowercase letters, digits and dashes; not in `METHODS`. A second call replaces the first.
    strategy, client : type
        The classes for the server and the clients.
    settings : type, optional
        Settings with their own table; by default those of the strategy.

    Raises
    ------
    CustomObjectError
        With one sentence, if an argument is invalid.
    """
    from fedkd_flwr.clients.base import PersonalClient  # deferred: it loads PyTorch

    if not NAME.fullmatch(name) or name in METHODS:
        raise CustomObjectError(
            f"{name!r} cannot be registered: use lowercase letters, digits and dashes, and not the "
            "name of a built-in method"
        )
    _require_subclass(name, "strategy", strategy, PersonalizedStrategy)
    _require_subclass(name, "client", client, PersonalClient)
    if settings is not None:
        _require_own_table(name, settings)
        strategy = type(
            strategy.__name__,
            (strategy,),
            {"record": strategy.record.derived(settings_type=settings)},
        )
    elif strategy.record.settings_type.table:
        _require_own_table(name, strategy.record.settings_type)
    method = Method(_place_of(strategy), _place_of(client))
    # Classes defined in a notebook cannot be imported by name.
    vars(method).update(strategy=strategy, client=client)
    REGISTERED[name] = method
    return method


def _place_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _require_subclass(name: str, role: str, given: object, base: type) -> None:
    if not (isinstance(given, type) and issubclass(given, base)):
        raise CustomObjectError(
            f"{name}: {role} is {given!r}; it should be a subclass of {base.__name__}"
        )


def _require_own_table(name: str, settings: type[Settings]) -> None:
    """Refuse settings without a table, or with the table of unrelated settings."""
    _require_subclass(name, "settings", settings, Settings)
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
