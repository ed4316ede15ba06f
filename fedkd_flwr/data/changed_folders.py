"""Read data again if a folder has changed between two runs of a process.

Runs of one process share what they have read, so that a sweep decodes its images once. In a
notebook, the folder of a data set may change between two runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from fedkd_flwr.data.registry import FOLDER, PFLLIB

Signature = list[tuple[str, int, int]]
"""Path, size in bytes and time of the last change, in nanoseconds, of each file in a folder."""


class Cached(Protocol):
    """A function with a cache, as `functools.lru_cache` returns it."""

    @property
    def cache_clear(self) -> Callable[[], None]:
        """The function that empties the cache."""


CachedFunction = TypeVar("CachedFunction", bound=Cached)

_READERS: list[Cached] = []
_SIGNATURES: dict[Path, Signature] = {}


def reads_data(function: CachedFunction) -> CachedFunction:
    """Empty the cache of a function when a folder of data has changed; a decorator."""
    _READERS.append(function)
    return function


def forget_changed_folders(*names: str) -> None:
    """Forget all data that were read if one of these data sets has changed since the last call.

    Parameters
    ----------
    *names : str
        Data sets of a run config; those but ``folder:PATH`` and ``pfllib:PATH`` do not count.
    """
    folders = [Path(name.partition(":")[2]) for name in names if name.startswith((FOLDER, PFLLIB))]
    now = {folder.resolve(): _signature(folder) for folder in folders}
    if any(_SIGNATURES.get(folder, signature) != signature for folder, signature in now.items()):
        forget_data()
    _SIGNATURES.update(now)


def forget_data() -> None:
    """Forget all data that were read."""
    for function in _READERS:
        function.cache_clear()


def _signature(folder: Path) -> Signature:
    files = ((path, path.stat()) for path in [folder, *sorted(folder.rglob("*"))] if path.is_file())
    return [(str(path), found.st_size, found.st_mtime_ns) for path, found in files]
