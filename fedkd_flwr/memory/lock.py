"""The lock of a folder of memories: one process at a time serves a run, or puts runs in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkd_flwr.files import lock_file, make_folder, open_private


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a folder, made if missing, against other processes and threads.

    Yield whether it is locked: False only without `wait`, True on file systems without locks.
    """
    make_folder(folder)
    with open_private(folder / "lock", "ab") as file:
        yield lock_file(file, wait) is not False
