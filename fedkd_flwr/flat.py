"""A run config as Flower has it: one level of names, and values that are no containers."""

from collections.abc import Mapping
from typing import Any

Scalar = bool | int | float | str
"""The values a Flower run config can hold."""


def as_scalar(value: Any) -> Scalar:
    """Write a list the way a run config holds it, separated by commas."""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    scalar: Scalar = value
    return scalar


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the names of nested tables by dots."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
