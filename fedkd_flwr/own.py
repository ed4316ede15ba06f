"""A researcher's own objects by name: ``my_package.nets:TinyNet`` in a run config.

Whatever a run config may name so is imported where it is used: in this process, in Ray's and on
the nodes of a federation. Nothing is ever imported that a reply names, or a file that somebody
else may have written.
"""

import re
from pkgutil import resolve_name
from typing import Any

_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_OWN = re.compile(f"{_DOTTED}:{_DOTTED}", re.ASCII)


class OwnError(ValueError):
    """An object of one's own that cannot be had, or is not what it should be; one sentence."""


def is_own(name: str) -> bool:
    """Return whether a name has the form ``module:object``."""
    return _OWN.fullmatch(name) is not None


def find_own(name: str) -> Any:
    """Import an object.

    Parameters
    ----------
    name : str
        As ``module:object``, both with dots where they lie in another.

    Raises
    ------
    OwnError
        If the module cannot be imported, or holds no such object.
    """
    module, _, member = name.partition(":")
    try:
        return resolve_name(name)
    except AttributeError as error:
        raise OwnError(f"{name}: {module} holds no {member} ({error})") from error
    # The module is the user's, and may raise anything.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise OwnError(f"{name}: {module} cannot be imported here ({reason})") from error


def find_callable(name: str, signature: str) -> Any:
    """Import something that can be called.

    Parameters
    ----------
    name : str
        As for `find_own`.
    signature : str
        How it is called, for the message.

    Raises
    ------
    OwnError
        If it cannot be imported or cannot be called.
    """
    found = find_own(name)
    if not callable(found):
        raise OwnError(f"{name} is a {type(found).__name__}, and should be callable: {signature}")
    return found
