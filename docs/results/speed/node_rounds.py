"""Cost of a round with real nodes, from ``deploy/measure_rounds.py --json FILE``."""

import json
import statistics
from pathlib import Path


def seconds(file: Path) -> str:
    """Return the median seconds of a round."""
    return f"{statistics.median(_read(file, 'seconds')):.1f}"


def extremes(file: Path) -> str:
    """Return the shortest and the longest round in seconds."""
    return f"{min(_read(file, 'seconds')):.1f} to {max(_read(file, 'seconds')):.1f}"


def processor(file: Path) -> str:
    """Return the median CPU seconds of a round, summed over all processes."""
    return f"{statistics.median(_read(file, 'processor')):.1f}"


def when(file: Path) -> str:
    """Return the date and the machine."""
    found = json.loads(file.read_text())
    return f"{found['date']}, {found['cores']} cores, load {found['load']:.1f} before"


def _read(file: Path, name: str) -> list[float]:
    values: list[float] = json.loads(file.read_text())[name]
    return values
