"""Who is told of a run while it goes."""

from collections.abc import Callable, Mapping
from typing import Any

RoundListener = Callable[[Mapping[str, Any]], None]
"""Is called with each finished round's row."""

ClientsListener = Callable[[str, int, int], None]
"""Is called while clients answer one exchange: its message type, how many did, of how many."""

LineListener = Callable[[str], None]
"""Is called with each line of Flower's log."""
