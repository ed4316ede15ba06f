"""Who is told of a run while it goes."""

from collections.abc import Callable, Mapping
from typing import Any

RoundListener = Callable[[Mapping[str, Any]], None]
"""Is called with each finished round's row."""

LineListener = Callable[[str], None]
"""Is called with each line of Flower's log."""
