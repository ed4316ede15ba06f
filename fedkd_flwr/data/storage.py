"""Where a data set is stored, a digest of its content, and which two share samples.

No file is parsed here.
"""

import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedkd_flwr.data.registry import DATASETS, DataError, hub_id_of, path_of

if TYPE_CHECKING:
    from datasets import DatasetDict

PARTS = ("train", "test")  # the parts of a data set that are pooled, in this order

MOVED = {source.hub_id.partition("/")[2]: source.hub_id for source in DATASETS.values()}
"""Sets of the hub by their names before they had an owner, under which it still finds them."""


def parquet_files(hub_id: str, data_root: str) -> list[Path]:
    """Return the Parquet files of a data set in a data root, train part first."""
    folder = Path(data_root).expanduser() / hub_id
    everything = sorted(folder.rglob("*.parquet"))
    files = [
        path
        for part in PARTS
        for path in everything
        if path.name.startswith(part) or path.parent.name == part
    ]
    if not files:
        raise DataError(
            f"data root {data_root!r} has no Parquet file of {hub_id}: "
            f"looked for train*.parquet and test*.parquet in and below {str(folder)!r}"
        )
    return files


@functools.cache
def hub_parts(hub_id: str) -> "DatasetDict":
    """Open a data set of the Hugging Face hub, once a process."""
    import datasets  # deferred: takes a second, and no data root needs it

    try:
        return datasets.load_dataset(hub_id)
    # The hub's client raises many unrelated kinds of error for "no network" and "no such set".
    except Exception as error:
        raise DataError(
            f"data set {hub_id} cannot be loaded from the Hugging Face hub "
            f"({type(error).__name__}); set data-root to a folder that holds it"
        ) from error


def fingerprint(hub_id: str, data_root: str = "") -> str:
    """Return a digest of the content of a data set before anything is decoded."""
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


TRAIN, VALIDATION, TEST, FOLD = PART_KINDS = ("train", "validation", "test", "fold")
"""What parts a folder may have, in the order in which they are pooled."""

_PART_WORDS = {
    TRAIN: r"train|training",
    VALIDATION: r"val|valid|validation|dev",
    TEST: r"test|testing|eval|evaluation",
    FOLD: r"fold\d+",
}
_PART_NAME = re.compile(
    r"(?:.*[ _-])?"
    + "(?:" + "|".join(f"(?P<{kind}>{words})" for kind, words in _PART_WORDS.items()) + ")"
    + r"(?:[ _-]?(?:set|data|images?|split))?",
    re.IGNORECASE,
)  # fmt: skip


def part_kind(name: str) -> str:
    """Return which part a folder's name stands for, such as `TEST` for ``Testing``; else empty."""
    found = _PART_NAME.fullmatch(name)
    return str(found.lastgroup) if found else ""


def parts_of(path: Path) -> list[Path]:
    """Return the parts of a labeled folder that are pooled; itself if it has none."""
    if not path.is_dir():  # a mere name, where all data are on nodes
        return [path]
    named = [folder for folder in subfolders(path) if part_kind(folder.name)]
    parts = [folder for folder in named if subfolders(folder) or not any(folder.iterdir())]
    order = sorted(parts, key=lambda part: PART_KINDS.index(part_kind(part.name)))
    return [_unwrapped(part) for part in order] or [path]


def _unwrapped(part: Path) -> Path:
    within = subfolders(part)
    is_wrapped = len(within) == 1 and part_kind(within[0].name) == part_kind(part.name)
    return within[0] if is_wrapped and subfolders(within[0]) else part


def subfolders(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted, except those that a tool made; none in a file."""
    return sorted(entry for entry in path.glob("*/") if not is_tools(entry.name))


def is_tools(folder: str) -> bool:
    """Return whether a tool made the folder, such as ``.ipynb_checkpoints`` or ``__MACOSX``."""
    return folder.startswith((".", "__"))


def share_samples(private: str, public: str, data_root: str = "") -> bool:
    """Return whether two data sets share samples, as far as names and places tell."""
    if _canonical(private, data_root) == _canonical(public, data_root):
        return True
    return any(
        ours.is_relative_to(theirs) or theirs.is_relative_to(ours)
        for ours in _places(private, data_root, labeled=True)
        for theirs in _places(public, data_root, labeled=False)
    )


def _canonical(name: str, data_root: str) -> str:
    hub_id = hub_id_of(name)
    if not hub_id:
        # A class member can be named `module:object.member` and `module.object:member`.
        return name.replace(":", ".")
    return hub_id if data_root else MOVED.get(hub_id, hub_id).lower()


def _places(name: str, data_root: str, labeled: bool) -> list[Path]:
    hub_id = hub_id_of(name)
    if path := path_of(name):
        places = parts_of(path) if labeled else [path]
    else:
        places = [Path(data_root).expanduser() / hub_id] if hub_id and data_root else []
    return [place.resolve() for place in places]
