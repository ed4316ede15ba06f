"""Atomic writes: a file is written under a temporary name, then moved into place."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file


def plain_name(name: str) -> str:
    """Return a name that is a valid file name on every system; built-in names do not change."""
    return re.sub(r"[^\w.+=,@ ()-]+", "-", name).strip("-")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; move its file to `path`, or remove it if writing fails.

    Parameters
    ----------
    path : Path
        The file to write or replace.

    Raises
    ------
    OSError
        If the file cannot be moved.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a crash leaves the old one or the new one.

    Raises
    ------
    OSError
        If the file cannot be written, such as on a full disk.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_arrays(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    durable: bool = True,
) -> None:
    """Write a safetensors file so that a crash leaves the old one or the new one.

    Parameters
    ----------
    path : Path
        The file.
    arrays : mapping of str to ndarray
        The arrays by name; may be empty.
    metadata : mapping of str to str, optional
        Text stored with the arrays.
    durable : bool
        Whether to wait until the data is on the disk; otherwise a power loss may lose it.

    Raises
    ------
    OSError
        If the file cannot be written, such as on a full disk.
    """
    # safetensors writes the bytes of an array in the order in which they are in memory.
    in_order = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    with replacing(path) as temporary:
        try:
            save_file(in_order, temporary, dict(metadata or {}))
        except SafetensorError as error:
            raise OSError(str(error)) from error
        if durable:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
