"""Files that are whole or not there: written beside their place, then moved into it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file


def plain_name(name: str) -> str:
    """Return a name as a file may have it everywhere; built-in names stay as they are."""
    return re.sub(r"[^\w.+=,@ ()-]+", "-", name).strip("-")


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a crash leaves the old one or the new one.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


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
        What it is to hold; a file without arrays holds none.
    metadata : mapping of str to str, optional
        Words beside the arrays.
    durable : bool
        Whether to wait until it is on the disk; else it may be lost with the power.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # What is not laid out row by row would be written in the order of its bytes.
        in_order = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        save_file(in_order, temporary, dict(metadata or {}))
    except SafetensorError as error:
        raise OSError(str(error)) from error
    if durable:
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
    temporary.replace(path)
