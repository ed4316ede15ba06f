"""A data set that an earlier process has decoded, beside decoding it again.

Whole processes, as every message to a real node is one: they import, and load the data.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.images import NAME, write_random_images
from benchmarks.pairs import Result, Task, in_turns, process

SAMPLES = 70_000
"""As many as Fashion-MNIST has."""

LOAD = """
import os
os.environ["FEDKD_CACHE"] = {cache!r}
import fedkd_flwr.client_app
from fedkd_flwr.data.sources import load_images
load_images({name!r}, {root!r})
"""


def measure() -> Iterator[Result]:
    """Measure a client's process up to where it has its data."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_random_images(root, SAMPLES)
        kept, decoded = load(root, str(root / "cache")), load(root, "off")
        yield in_turns("data from the cache", kept, "decoding it", decoded, at_most=0.6)


def load(root: Path, cache: str) -> Task:
    """Return a task that loads a data set in a fresh process, with its cache at a place."""
    return process(sys.executable, "-c", LOAD.format(cache=cache, name=NAME, root=str(root)))
