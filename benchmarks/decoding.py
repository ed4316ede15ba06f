"""Load a data set from the cache of decoded images, and decode it again.

Each task is a whole process that imports the client app and loads the data, because in a
deployment every message starts a new process.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.images import NAME, write_random_images
from benchmarks.pairs import Result, Task, process, time_alternately

SAMPLES = 70_000
"""The size of Fashion-MNIST."""

LOAD = """
import os
os.environ["FEDKD_CACHE"] = {cache!r}
import fedkd_flwr.client_app
from fedkd_flwr.data.sources import load_images
load_images({name!r}, {root!r})
"""


def measure() -> Iterator[Result]:
    """Measure a client's process until its data is loaded."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_random_images(root, SAMPLES)
        cached, decoded = load(root, str(root / "cache")), load(root, "off")
        yield time_alternately(
            "data from the cache", cached, "decoding the images", decoded, at_most=0.6
        )


def load(root: Path, cache: str) -> Task:
    """Return a task that loads the data set in a new process, with the given cache folder."""
    return process(sys.executable, "-c", LOAD.format(cache=cache, name=NAME, root=str(root)))
