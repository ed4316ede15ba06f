"""Flower's flat run config: one level of names, and scalar values."""

from collections.abc import Mapping
from typing import Any

Scalar = bool | int | float | str
"""Values of a Flower run config."""


def as_scalar(value: Any) -> Scalar:
    """Convert a list to text separated by commas; return other values unchanged."""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    scalar: Scalar = value
    return scalar


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables, with their names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
