"""Versions of packages that server and nodes install themselves, and what a difference means.

A reply of a node with another major or minor version of ``flwr`` or ``fedkd-flwr`` is not used. Any
other difference is logged: another PyTorch can change the last digits.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

REQUIRED_ALIKE = ("flwr", "fedkd-flwr")
"""Packages whose major and minor version has to be that of the server."""

COMPARED = (*REQUIRED_ALIKE, "torch")
"""Packages whose versions a node sends."""

UNKNOWN = "unknown"
"""Version of a package that is not installed, such as the project in a copied folder."""


@cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions of `COMPARED` on this machine, without importing them."""
    return {name: _version(name) for name in COMPARED}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return UNKNOWN


def as_text(versions: Mapping[str, str]) -> str:
    """Write versions as a node sends them, such as ``flwr 1.41.0, torch 2.15.0``."""
    return ", ".join(f"{name} {found}" for name, found in versions.items())


@cache
def as_sent() -> str:
    """Return this machine's versions as a node sends them."""
    return as_text(installed_versions())


def from_text(text: str) -> dict[str, str]:
    """Read the versions of `COMPARED` that a node sent; parts that are none are left out."""
    pairs = (part.strip().partition(" ") for part in text.split(","))
    return {name: found for name, _, found in pairs if name in COMPARED}


def refusal(ours: Mapping[str, str], sent: str) -> str:
    """Return why replies of a node with the versions `sent` are not used; empty if they are.

    Packages that the node does not name are not compared: the strategies serve other clients too.
    """
    theirs = from_text(sent)
    named = [name for name in REQUIRED_ALIKE if name in theirs]
    others = [name for name in named if _minor(ours[name]) != _minor(theirs[name])]
    if not others:
        return ""
    differences = _differences(ours, theirs, others)
    return f"has {differences}: install the server's versions on the node"


def difference(ours: Mapping[str, str], sent: str) -> str:
    """Return in which versions a node differs from the server; empty if in none."""
    theirs = from_text(sent)
    return _differences(ours, theirs, [name for name in theirs if ours[name] != theirs[name]])


def _minor(found: str) -> list[str]:
    return found.split(".")[:2]


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {theirs[name]} instead of {ours[name]}" for name in names)
