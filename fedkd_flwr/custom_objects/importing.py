"""Custom objects by name: ``my_package.nets:TinyNet`` in a run config.

The object is imported where it is used: in this process, in Ray's processes and on the nodes of
a federation. A name that comes in a reply or from somebody else's file is never imported.

An object that no module holds, such as a lambda or an array, has a name of the form
``object:NAME``, which is valid in this process alone.
"""

import re
import sys
from collections.abc import Collection
from difflib import get_close_matches
from operator import attrgetter
from pkgutil import resolve_name
from typing import Any

_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_OWN = re.compile(f"{_DOTTED}:{_DOTTED}", re.ASCII)

OBJECT = "object"  # stands for the module in the names of objects that no module holds
OF_THIS_PROCESS = (OBJECT, "__main__")  # what a name begins with that other processes cannot find

OURS = ("fedkd_flwr", "strategies")
"""The packages of this project, whose exceptions explain themselves and need no traceback."""

INSTALLED = ("site-packages", "dist-packages")  # folders of installed packages
HELD: dict[str, Any] = {}  # objects that were given to this process, by their names ``object:NAME``


class CustomObjectError(ValueError):
    """A custom object that cannot be imported or used; the message is one sentence."""


def is_custom(name: str) -> bool:
    """Return whether a name has the form ``module:object``."""
    return _OWN.fullmatch(name) is not None


def is_of_this_process(name: str) -> bool:
    """Return whether a name stands for an object that other processes cannot find."""
    return is_custom(name) and name.partition(":")[0] in OF_THIS_PROCESS


def shown_data(name: str) -> str:
    """Return the name of a data set for people: arrays that were passed have a digest as name."""
    return "your arrays" if name.startswith(f"{OBJECT}:") else name


def is_named(name: str, given: Collection[str]) -> bool:
    """Return whether the user has given an own name, its module or a package that holds it."""
    module = name.partition(":")[0]
    return any(one in (name, module) or module.startswith(f"{one}.") for one in given)


def not_held(names: str) -> list[str]:
    """Return those of some names, separated by commas, whose objects this process lacks."""
    return [name for name in names.split(",") if name.startswith(f"{OBJECT}:") and name not in HELD]


def find_custom(name: str) -> Any:
    """Return the object of a name."""
    if name in HELD:
        return HELD[name]
    module, _, member = name.partition(":")
    if module == OBJECT:
        raise CustomObjectError(
            f"{name} is a Python object that was passed in another process: pass it again to "
            "fedkd_flwr.run or resume under the same setting, or first call "
            "fedkd_flwr.name_objects with it"
        )
    try:
        return resolve_name(name)
    except AttributeError as error:
        close = get_close_matches(member, dir(sys.modules.get(module)))
        hint = f"; similar names there: {', '.join(close)}" if close else ""
        raise CustomObjectError(f"{name}: {module} holds no {member} ({error}){hint}") from error
    # A user's module may raise anything.
    except Exception as error:
        root = module.partition(".")[0]
        hint = f"; {root} is a package of fedkd-flwr, so rename your own" if root in OURS else ""
        raise CustomObjectError(
            f"{name}: {module} cannot be imported here ({told(error)}){hint}"
        ) from error


def told(error: BaseException) -> str:
    """Return the class and the text of a user's error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": .")


def find_callable(name: str, signature: str) -> Any:
    """Return the callable object of a name."""
    found = find_custom(name)
    if not callable(found):
        raise CustomObjectError(
            f"{name} is a {type(found).__name__}, and should be callable: {signature}"
        )
    return found


def name_in_module(thing: Any) -> str | None:
    """Return the name ``module:object`` of a class or function; None if no module holds it."""
    module, member = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    name = f"{module}:{member}"
    if not is_custom(name) or module not in sys.modules:
        return None
    try:
        found = attrgetter(member)(sys.modules[module])
    except AttributeError:
        return None
    return name if found is thing else None


def hold(thing: Any, label: str) -> str:
    """Keep an object in this process, and return its name."""
    name = f"{OBJECT}:{label}"
    HELD[name] = thing
    return name
