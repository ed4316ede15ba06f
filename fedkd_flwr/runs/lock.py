"""The lock of a run directory: only one process at a time writes a run."""

import contextlib
import os
import socket
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from typing import IO

from fedkd_flwr.files import lock_file
from fedkd_flwr.runs.folders import RunDirectoryError
from strategies.core.flower import log


def lock_directory(path: Path) -> IO[str]:
    """Lock a run directory against other processes."""
    folder = path / "checkpoint"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)  # results may identify patients
        folder.mkdir(exist_ok=True)
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
    # On a full disk the lock works without the name of its holder.
    with contextlib.suppress(OSError):
        file.truncate()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} (since {now})")
        file.flush()
    return file


def _lock_exclusively(file: IO[str]) -> bool:
    """Try to lock a file for this process; return whether it worked, without waiting."""
    try:
        locked = lock_file(file, wait=False)
    except OSError as error:
        raise RunDirectoryError(f"{file.name} cannot be locked: {error.strerror}.") from error
    if locked is None:
        log(
            WARNING,
            "%s is on a file system without locks: make sure that no other run writes there",
            Path(file.name).parent.parent,
        )
    return locked is not False
