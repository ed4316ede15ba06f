"""The lock of a folder of memories: one process at a time serves a run, or puts runs in order."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedkd_flwr.files import make_folder, open_private

if sys.platform != "win32":
    import fcntl

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without locks, such as some network file systems."""


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a folder against other processes and threads. A process that ends holds no lock.

    Parameters
    ----------
    folder : Path
        Made if missing.
    wait : bool
        Whether to wait for others that have locked it.

    Yields
    ------
    bool
        Whether it is locked; False only without `wait`. On file systems without locks, True.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    make_folder(folder)
    with open_private(folder / "lock", "ab") as file:
        yield _is_locked(file, wait)


def _is_locked(file: IO[bytes], wait: bool) -> bool:
    """Lock a file for this process if it can be locked."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
