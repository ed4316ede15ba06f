"""Callbacks that receive the progress of a run."""

from collections.abc import Callable, Mapping
from typing import Any

RoundListener = Callable[[Mapping[str, Any]], None]
"""Is called with the row of each finished round."""

ClientsListener = Callable[[str, int, int], None]
"""Is called during an exchange: message type, number of replies, number of clients asked."""

LineListener = Callable[[str], None]
"""Is called with each line of Flower's log."""
