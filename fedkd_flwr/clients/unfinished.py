"""What a long message has come to so far, on disk, so that the same message goes on from there.

A client's memory is written when its round is complete. Where a single message takes hours, as in
PersFL's second stage, that would lose all of them to a stop; so the client notes besides how far it
is, where its memory of the run is kept. Since the round may have to be repeated, the notes go in a
later one, or with the end of the run where they are in its directory.
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
"""The notes in a run's folder of memories, a file a client and round."""


@dataclass(frozen=True)
class Unfinished:
    """Notes on how far a client is with a message.

    Attributes
    ----------
    folder : Path or None
        Where its memory of the run is kept, if anywhere; else nothing is noted.
    partition_id : int
        Which client it is.
    server_round : int
        The round of the message.
    """

    folder: Path | None = None
    partition_id: int = 0
    server_round: int = 0

    def note(self, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> None:
        """Write named tensors and what JSON holds, in place of what was there; whole or not at all.

        A disk that refuses costs the notes, and not the message.
        """
        if self.folder is None:
            return
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_arrays(self._file, arrays, {"words": json.dumps(words)}, durable=False)
        except OSError as error:
            log(WARNING, "How far this message is cannot be noted: %s", error)

    def noted(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return tensors and words as they were noted last; None where there are none to read."""
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
    """Remove the notes of all rounds before one in a folder, which may be missing."""
    for file in folder.glob(NOTES):
        if int(file.stem.rpartition("-")[2]) < before_round:
            file.unlink(missing_ok=True)
