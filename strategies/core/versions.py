"""Versions of packages that server and nodes install themselves, and what a difference means.

A reply of a node with another major or minor version of ``flwr`` or ``fedkd-flwr`` is not used. Any
other difference is logged: another PyTorch can change the last digits.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

REQUIRED_ALIKE = ("flwr", "fedkd-flwr")
"""Packages whose major and minor version has to be that of the server."""

COMPARED = (*REQUIRED_ALIKE, "torch")  # packages whose versions a node sends


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions of `COMPARED` on this machine, without importing them."""
    return {name: _version(name) for name in COMPARED}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # as of the project in a copied folder
        return "unknown"


@cache
def as_sent() -> str:
    """Return this machine's versions as a node sends them."""
    return ", ".join(f"{name} {found}" for name, found in installed_versions().items())


def refusal(ours: Mapping[str, str], sent: str) -> str:
    """Return why replies of a node with the versions `sent` are not used; empty if they are.

    Packages that the node does not name are not compared: the strategies serve other clients too.
    """
    found = _differences(ours, sent, REQUIRED_ALIKE, lambda version: version.split(".")[:2])
    return f"has {found}: install the server's versions on the node" if found else ""


def difference(ours: Mapping[str, str], sent: str) -> str:
    """Return in which versions a node differs from the server; empty if in none."""
    return _differences(ours, sent, COMPARED, str)


def _differences(
    ours: Mapping[str, str], sent: str, names: Collection[str], compared: Callable[[str], object]
) -> str:
    pairs = (part.strip().partition(" ") for part in sent.split(","))
    return ", ".join(
        f"{name} {found} instead of {ours[name]}"
        for name, _, found in pairs
        if name in names and compared(found) != compared(ours[name])
    )
