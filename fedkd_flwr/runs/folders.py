"""Folders of runs: names, errors, checks before any client works, and the lock of their writer."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from logging import WARNING
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedkd_flwr.files import lock_file, now, plain_name
from strategies.core.flower import log

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration


class RunDirectoryError(OSError):
    """A run directory that cannot be written or read; the message is one sentence."""


class CodeNotNamedError(RunDirectoryError):
    """A run directory that names code which the user has not named; nothing was imported."""


class DamagedRunError(RunDirectoryError):
    """A run directory with an unreadable file; the message names the file and the remedy."""


WRITTEN = ("*.jsonl", "matrices/*.npy", "split.json", "summary.json")
"""Patterns of the files of a run beside its ``config.json``."""


def default_run_directory(configuration: "Configuration", parent: Path) -> Path:
    """Return the path of a new directory, named after method, data, seed and time."""
    run = configuration.run
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    data, seed = run.data, run.plan.seed
    name = plain_name(f"{run.strategy}-{data.dataset.split('/')[-1]}-{data.partition}")
    return parent / f"{name}-seed{seed}-{stamp}"


def absolute(path: str | Path) -> Path:
    """Return the absolute path of a file or folder, which need not exist."""
    try:
        found = Path(path).expanduser().resolve()
        # The operating system refuses names that are too long only when it is asked.
        found.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunDirectoryError(f"{str(path)!r} is not a valid path: {reason}.") from None
    return found


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn an error of the disk into a `RunDirectoryError`, which says what cannot be written."""
    try:
        yield
    except RunDirectoryError:  # which is an OSError too, and says what is wrong
        raise
    except OSError as error:
        raise RunDirectoryError(f"{what} cannot be written: {error.strerror or error}.") from error


def require_writable(folder: Path, name: str) -> None:
    """Check that files can be written to a folder; leave nothing there."""
    missing: list[Path] = []
    try:
        with writing(f"The {name} {folder}"):
            missing = [part for part in (folder, *folder.parents) if not part.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    finally:
        remove_empty(missing)


def require_new(path: Path) -> None:
    """Check that a new run can be written to a directory; leave nothing there."""
    require_writable(path, "output directory")
    if (path / "config.json").exists():
        raise RunDirectoryError(
            f"{path} already holds a run: choose another output-dir, or continue it "
            f"(fedkd run --resume {path}, or resume = true)."
        )
    for run in path.glob("*/config.json"):
        raise RunDirectoryError(
            f"{path} is a folder of runs, such as {run.parent.name}; choose a new folder inside it "
            f"as output-dir, such as {path / 'NEW-RUN'}."
        )
    for file in chain.from_iterable(map(path.glob, WRITTEN)):
        raise RunDirectoryError(
            f"{path} holds a file {file.relative_to(path)} that belongs to no run, and would count "
            "as a file of the new one: choose another output-dir, or move the file."
        )


def remove_empty(folders: list[Path]) -> None:
    """Remove the empty ones of some folders; inner folders come first."""
    for folder in folders:
        # The folder may be gone, or hold files of somebody else.
        with suppress(OSError):
            folder.rmdir()


def lock_directory(path: Path) -> IO[str]:
    """Lock a run directory against other processes."""
    folder = path / "checkpoint"
    with writing(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)  # results may identify patients
        folder.mkdir(exist_ok=True)
        file = (folder / "lock").open("a+")
    file.seek(0)
    if not _lock_exclusively(file):
        holder = file.read().strip() or "another process"
        file.close()
        raise RunDirectoryError(
            f"{path} is being written by {holder}; stop that run "
            "(`flwr stop`, or end the process) before you continue it."
        )
    # On a full disk the lock works without the name of its holder.
    with suppress(OSError):
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()} (since {now()})")
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
