"""Where a data set is stored, and a digest of its content; no file is parsed here."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedkd_flwr.data.registry import DataError

if TYPE_CHECKING:
    from datasets import DatasetDict

PARTS = ("train", "test")
"""The parts of a data set that are pooled, in this order."""


def parquet_files(hub_id: str, data_root: str) -> list[Path]:
    """Return the Parquet files of a data set in a data root, train part first.

    They are named as ``train.parquet``, ``train-00000-of-00002.parquet`` or
    ``train/0000.parquet``, at any depth: the hub has written all of these.

    Parameters
    ----------
    hub_id : str
        Name on the Hugging Face hub, and folder in the data root.
    data_root : str
        The folder.

    Raises
    ------
    DataError
        If there are none.
    """
    folder = Path(data_root).expanduser() / hub_id
    files = [path for part in PARTS for path in _files_of_part(folder, part)]
    if not files:
        raise DataError(
            f"data root {data_root!r} has no Parquet file of {hub_id}: "
            f"looked for train*.parquet and test*.parquet in and below {str(folder)!r}"
        )
    return files


def _files_of_part(folder: Path, part: str) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*.parquet")
        if path.name.startswith(part) or path.parent.name == part
    )


@functools.cache
def hub_parts(hub_id: str) -> "DatasetDict":
    """Open a data set of the Hugging Face hub, once a process.

    Raises
    ------
    DataError
        If it cannot be loaded.
    """
    import datasets  # deferred: takes a second, and runs with a data root do without

    try:
        return datasets.load_dataset(hub_id)
    # The hub's client raises many unrelated kinds of error for "no network" and "no such set".
    except Exception as error:
        raise DataError(
            f"data set {hub_id} cannot be loaded from the Hugging Face hub "
            f"({type(error).__name__}); set data-root to a folder that holds it"
        ) from error


def fingerprint(hub_id: str, data_root: str = "") -> str:
    """Return a digest of a data set before anything is decoded.

    Of the Parquet files of a data root it is that of their content, wherever they lie; of the
    hub's it follows from the fingerprints that Hugging Face gives to the version it has loaded.

    Parameters
    ----------
    hub_id : str
        Name on the Hugging Face hub, and folder in a data root.
    data_root : str
        Folder that holds Parquet data sets by hub id; empty for the hub.

    Raises
    ------
    DataError
        If the data set is missing or a file cannot be read.
    """
    digest = hashlib.sha256()
    if data_root:
        for path in parquet_files(hub_id, data_root):
            digest.update(_digest_of_file(path))
    else:
        for part, table in hub_parts(hub_id).items():
            # `datasets` identifies a table by this hash, and has no public name for it.
            digest.update(f"{part} {len(table)} {table._fingerprint}\n".encode())
    return digest.hexdigest()


def digest_of(files: Iterable[bytes]) -> str:
    """Return a digest of the content of some files, and of where each ends."""
    digest = hashlib.sha256()
    for content in files:
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.hexdigest()


def _digest_of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
