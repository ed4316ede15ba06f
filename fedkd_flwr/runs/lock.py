"""The lock of a run directory: one process at a time writes a run."""

import contextlib
import errno
import os
import socket
import sys
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import IO

from fedkd_flwr.runs.errors import RunDirectoryError
from strategies.core.flower import log

if sys.platform != "win32":
    import fcntl

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""How a file system says that it knows no locks, as some network file systems do."""


def lock_directory(path: Path) -> IO[str]:
    """Keep other processes from writing a run directory.

    Parameters
    ----------
    path : Path
        The run directory, made if missing.

    Returns
    -------
    file
        Holds the lock until it is closed, or until the process is gone, however it ends.

    Raises
    ------
    RunDirectoryError
        If another process holds the lock; with its name.
    """
    folder = path / "checkpoint"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise RunDirectoryError(f"{folder} cannot be written: {error.strerror or error}.") from None
    file.seek(0)
    if not _lock_exclusively(file):
        holder = file.read().strip() or "another process"
        file.close()
        raise RunDirectoryError(
            f"{path} is being written by {holder}; stop that run "
            "(`flwr stop`, or end the process) before you continue it."
        )
    # On a full disk the lock holds without a name.
    with contextlib.suppress(OSError):
        file.truncate()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} (since {now})")
        file.flush()
    return file


def _lock_exclusively(file: IO[str]) -> bool:
    """Lock a file for this process; return whether that worked, at once."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RunDirectoryError(f"{file.name} cannot be locked: {error.strerror}.") from error
        log(
            WARNING,
            "%s is on a file system without locks: see that no second run writes there",
            Path(file.name).parent.parent,
        )
    return True
