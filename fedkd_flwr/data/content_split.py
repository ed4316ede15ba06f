"""The split of a node's own data by content: a sample keeps its part while the silo grows.

Each sample has a place in [0, 1), a hash of its content or of its group (such as the patient).
``client-split = 60/10/20`` divides [0, 1): training samples lie in [0, 0.6), validation samples in
[0.6, 0.7), test samples in [0.8, 1). Added, removed, renamed, reordered or relabeled samples change
no other place, nor does the seed of a run. The sizes of the parts follow the percentages on
average, and classes are not balanced over the parts.

A small silo can have a part without a sample. The sample nearest to that part is then moved there,
with a warning, and moves back when the part gets a sample by its hash.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.data.registry import DataError
from fedkd_flwr.data.splits import chosen_percentages
from strategies.core.flower import log
from strategies.core.randomness import random_generator

SALT = "fedkd-flwr own-split 1\n"
"""Begins what is hashed to a place. Another salt would move samples between parts."""

TRAIN, VALIDATION, TEST, UNUSED = range(4)  # the parts, in the order of `PART_NAMES`

PART_NAMES = ("training", "validation", "test", "unused")


@dataclass(frozen=True)
class Grouping:
    """How a node's operator tells which samples belong together, such as those of a patient.

    By a column of a table, or by a regular expression that finds the group in a file's path; its
    first parenthesis if it has one.
    """

    column: str = ""
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.column and self.pattern:
            raise DataError("set one of group-column and group-pattern, not both")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise DataError(f"group-pattern is not a regular expression: {error}") from error


UNGROUPED = Grouping()  # each sample stands for itself


def content_keys(contents: Iterable[bytes]) -> list[str]:
    """Return a digest of the content of each sample."""
    return [hashlib.sha256(content).hexdigest() for content in contents]


def groups_of_files(paths: Sequence[PurePath], pattern: str) -> list[str]:
    """Return the group of each file by a pattern; an error names no file, as it may leave."""
    found = [re.search(pattern, path.as_posix()) for path in paths]
    groups = [match and (match[1] if match.re.groups else match[0]) for match in found]
    fitting = [group for group in groups if group is not None]
    if len(fitting) < len(paths):
        raise DataError(
            f"group-pattern fits {len(fitting)} of {len(paths)} file names; it has to fit all, "
            "so that no group is in two parts"
        )
    return fitting


def parts_by_content(
    keys: Sequence[str],
    fractions: str,
    partition_id: int,
    folders: Sequence[str] = (),
    kind: str = "samples",
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Split samples into train, validation and test by their keys; return sorted positions.

    Samples with one key share a part, and a part with a percentage above 0 has at least one sample.
    `folders` says ``train`` or ``test`` of each sample where the operator has both. `kind` names
    the keys in messages.
    """
    # Not the seed of the run: a sample keeps its part in runs of every seed.
    generator = random_generator(0, "client-split", partition_id)
    percentages = chosen_percentages(fractions, generator) / 100
    wanted = np.flatnonzero(percentages).tolist()
    if folders:
        part_of = _parts_of_folders(keys, folders, percentages, kind)
        movable = {key: part for key, part in part_of.items() if part != TEST}
        wanted.remove(TEST)
    else:
        distinct = sorted(set(keys))
        part_of = dict(zip(distinct, _parts_at(_places(distinct), percentages), strict=True))
        movable = part_of
    if len(movable) < len(wanted):
        raise DataError(
            f"client {partition_id} has {len(movable)} {kind}, too few for the client-split "
            f"{fractions}, which needs {len(wanted)}"
        )
    for part in wanted:
        if part not in movable.values():
            lent = _nearest(part, movable, percentages)
            _warn_of_lent(part, movable[lent], len(movable), kind)
            movable[lent] = part
    part_of = {**part_of, **movable}
    parts = np.array([part_of[key] for key in keys])
    train, validation, test = (np.flatnonzero(parts == part) for part in (TRAIN, VALIDATION, TEST))
    return train, validation, test


def _places(keys: Sequence[str]) -> NDArray[np.float64]:
    """Return the place of each key in [0, 1), uniform for different keys."""
    digests = [hashlib.sha256((SALT + key).encode()).digest() for key in keys]
    return np.array([int.from_bytes(digest[:6]) / 2**48 for digest in digests])


def _parts_at(places: NDArray[np.float64], shares: NDArray[np.float64]) -> list[int]:
    """Return the part at each place: train from 0 on, validation after it, test up to 1."""
    train, validation, test = shares
    is_in = [places < train, places >= 1 - test, places < train + validation]
    return np.select(is_in, [TRAIN, TEST, VALIDATION], UNUSED).tolist()


def _parts_of_folders(
    keys: Sequence[str], folders: Sequence[str], percentages: NDArray[np.float64], kind: str
) -> dict[str, int]:
    """Return the part of each key where the operator has folders ``train`` and ``test``."""
    held = {
        folder: {key for key, of in zip(keys, folders, strict=True) if of == folder}
        for folder in ("train", "test")
    }
    if not held["test"]:
        raise DataError("the folder test/ has no image; fill it, or remove both train/ and test/")
    in_both = len(held["train"] & held["test"])
    if in_both and kind == "groups":
        raise DataError(
            f"{in_both} groups have images in train/ and in test/; keep each group in one of them"
        )
    if in_both:
        log(WARNING, "%d images of train/ are also in test/: they are test images alone", in_both)
    train, validation, _ = percentages
    shares = np.array([train, validation, 0.0]) / (train + validation)
    in_train = sorted(held["train"] - held["test"])
    parts = dict(zip(in_train, _parts_at(_places(in_train), shares), strict=True))
    return {**parts, **dict.fromkeys(held["test"], TEST)}


def _nearest(part: int, part_of: dict[str, int], percentages: NDArray[np.float64]) -> str:
    """Return the key to lend to an empty part: an unused one, else one of the largest part."""
    sizes = np.bincount(list(part_of.values()), minlength=len(PART_NAMES))
    donor = UNUSED if sizes[UNUSED] else int(sizes.argmax())
    keys = [key for key, own in part_of.items() if own == donor]
    train, validation, test = percentages
    middle = (train / 2, train + validation / 2, 1 - test / 2)[part]
    return keys[int(np.abs(_places(keys) - middle).argmin())]


def _warn_of_lent(part: int, donor: int, count: int, kind: str) -> None:
    log(
        WARNING,
        "the %s part has none of %d %s: one of the %s part is used for it until it has its own. "
        "Add images, or divide them yourself into folders train/ and test/",
        *(PART_NAMES[part], count, kind, PART_NAMES[donor]),
    )
