"""What a user reads if a result cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkd_flwr.runs import RunDirectoryError


@contextmanager
def written_to(path: str | Path, what: str) -> Iterator[None]:
    """Turn an error of the disk into a sentence.

    Parameters
    ----------
    path : path
        The file or folder.
    what : str
        What is written to it, such as ``The report``.

    Raises
    ------
    RunDirectoryError
        If the disk refuses it.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(f"{what} cannot be written to {path}: {reason}.") from None
