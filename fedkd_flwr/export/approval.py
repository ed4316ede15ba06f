"""Which of a node's exported models is in use: the one that its operator approved last.

Every run exports to a folder of its own, ``MODELS/RUN/round-000030/0.safetensors``. Approving a
model copies it to ``MODELS/approved``, and turns the link ``MODELS/in-use-0`` to the copy. No run
writes there, and whoever reads through the link sees the old model or the new one, with its card.
A copy is never changed: if a run repeated the round, the new model has a folder beside it.
"""

import getpass
import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from logging import WARNING
from pathlib import Path
from typing import Any

from fedkd_flwr.export.files import read_card
from fedkd_flwr.files import replacing
from strategies.core.flower import log

APPROVED = "approved"
"""Folder of the copies, inside the folder of a node's models."""

LOG = "log.jsonl"
"""Who approved what and when, one line each, beside the copies."""


@dataclass(frozen=True)
class ExportedModel:
    """A model below the folder of a node's models.

    Attributes
    ----------
    path : Path
        The safetensors file.
    card : dict
        Its card.
    in_use : bool
        Whether it was approved last.
    """

    path: Path
    card: dict[str, Any]
    in_use: bool


def link_in_use(models: Path, partition_id: int) -> Path:
    """Return the link to the folder of the model in use."""
    return models / f"in-use-{partition_id}"


def exported_models(models: Path) -> Iterator[ExportedModel]:
    """Yield the models of all runs, without the copies, by run and round.

    A warning names a model that is left out, since its card is missing or cut off.
    """
    for path in sorted(models.glob("*/round-*/*.safetensors")):
        if path.is_relative_to(models / APPROVED):
            continue
        try:
            card = read_card(path)
        except (FileNotFoundError, ValueError) as error:
            log(WARNING, "%s is left out: %s", path, error)
            continue
        used = link_in_use(models, card["partition-id"]) / path.name
        in_use = used.exists() and _digest(used) == _digest(path)
        yield ExportedModel(path, card, in_use)


def approve_model(path: Path) -> Path:
    """Copy an exported model, and use the copy from now on.

    Parameters
    ----------
    path : Path
        ``MODELS/RUN/round-ROUND/PARTITION.safetensors``, or an earlier copy of one.

    Returns
    -------
    Path
        The file through the link, ``MODELS/in-use-PARTITION/PARTITION.safetensors``.

    Raises
    ------
    FileNotFoundError
        If the weights or the card are missing.
    ValueError
        If the file does not lie in the folder of a run and a round, or its card is cut off.
    OSError
        If it cannot be copied.
    """
    card, path = read_card(path), path.expanduser().absolute()
    run_folder = path.parent.parent
    if not path.parent.name.startswith("round-"):
        raise ValueError(
            f"{path} is no exported model of a run and a round, such as "
            "MODELS/RUN/round-000030/0.safetensors"
        )
    models = run_folder.parent
    models = models.parent if models.name == APPROVED else models
    copy = models / APPROVED / run_folder.name / path.parent.name
    if copy != path.parent:
        copy = _copied(path, copy)
    _turn(link_in_use(models, card["partition-id"]), copy)
    line = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "user": getpass.getuser(),
        "model": str((copy / path.name).relative_to(models)),
        "sha256": _digest(path),
    }
    with (models / APPROVED / LOG).open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    return link_in_use(models, card["partition-id"]) / path.name


def _copied(path: Path, folder: Path) -> Path:
    """Copy a model to a folder, or beside it if another one is there; return where it is."""
    for number in itertools.count(1):
        place = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        copy = place / path.name
        if not copy.exists():
            break
        if all(_digest(file) == _digest(place / file.name) for file in _files(path)):
            return place
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The weights are moved into place last, and stand for both files.
    with ExitStack() as moved:
        for file in _files(path):
            shutil.copy2(file, moved.enter_context(replacing(place / file.name, durable=True)))
    return place


def _files(path: Path) -> tuple[Path, Path]:
    """Return the files of a model: weights and card."""
    return path, path.with_suffix(".json")


def _turn(link: Path, target: Path) -> None:
    """Let a link lead to another folder, at no moment to none."""
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target.relative_to(link.parent), target_is_directory=True)
    new.replace(link)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
