"""Notes on disk on the progress of a long message, so that it can continue after an interruption.

A client's memory is written at the end of its round. A single message can take hours, as in
PersFL's second stage, and an interruption would lose that time. The client therefore also writes
notes on its progress next to its memory. The round may have to be repeated, so the notes are
removed in a later round, or at the end of the run if they are in its directory.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedkd_flwr.files import write_arrays
from strategies.core.flower import log

NOTES = "unfinished-*.safetensors"
"""Pattern of the notes in a run's memory folder, one file per client and round."""


@dataclass(frozen=True)
class Unfinished:
    """Notes on a client's progress with a message.

    Attributes
    ----------
    folder : Path or None
        The folder of its memory of the run. Without one, nothing is noted.
    partition_id : int
        The client's number.
    server_round : int
        The round of the message.
    """

    folder: Path | None = None
    partition_id: int = 0
    server_round: int = 0

    def note(self, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> None:
        """Write named tensors and values for JSON, completely or not at all.

        They replace earlier notes. If they cannot be written, the message continues without them.
        """
        if self.folder is None:
            return
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_arrays(self._file, arrays, {"words": json.dumps(words)}, durable=False)
        except OSError as error:
            log(WARNING, "The progress of this message cannot be saved: %s", error)

    def noted(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the latest tensors and values; None if there are none to read."""
        if self.folder is None or not self._file.exists():
            return None
        try:
            with safe_open(self._file, framework="numpy") as stored:
                words = json.loads(stored.metadata()["words"])
                names = stored.keys()
                tensors = {name: torch.from_numpy(stored.get_tensor(name)) for name in names}
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            log(WARNING, "%s cannot be read (%s); the message starts over", self._file, error)
            return None
        return tensors, words

    @property
    def _file(self) -> Path:
        assert self.folder
        return self.folder / NOTES.replace("*", f"{self.partition_id}-{self.server_round:06d}")


def remove_notes(folder: Path, before_round: float = math.inf) -> None:
    """Remove the notes of all rounds before a round. The folder may be missing."""
    for file in folder.glob(NOTES):
        if int(file.stem.rpartition("-")[2]) < before_round:
            file.unlink(missing_ok=True)
