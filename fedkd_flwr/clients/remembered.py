"""What a client remembers between messages: recalled when one arrives, and kept at its end.

Flower gives a node every waiting message at once. If a training takes longer than the server waits,
the next one therefore starts in another process, with a context from before both. So a train
message holds the memory of its run on disk, and those after it wait and go on from what it kept.
"""

import hashlib
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from fedkd_flwr.clients.local_training import LocalTraining, PrivateTraining
from fedkd_flwr.clients.messages import TRAIN, Request
from fedkd_flwr.clients.participation import Participation, SameObject
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.config import RunConfig
from fedkd_flwr.memory import (
    DamagedMemoryError,
    Memory,
    MemoryFolder,
    Place,
    forget_old_runs,
    locked,
    round_of,
)


class Remembered:
    """The memory of one client, for one message, and where it is kept between messages."""

    def __init__(self, kept_in: Place, part: Participation) -> None:
        self._kept_in, self._part, self._node = kept_in, part, part.node
        self._replaceable: Collection[Path] | None = None
        self.memory = self._kept_in.memory
        kind = PrivateTraining if part.run.dp_sgd.noise_multiplier else LocalTraining
        self.local: LocalTraining = kind(part.run, part.node, self.memory)

    def folder(self, request: Request) -> MemoryFolder | None:
        """Return the folder of the client's memory of a message's run, if it has one."""
        folder, run_id = self._node.state_folder, request.run_id
        return MemoryFolder(folder / run_id) if folder and run_id else None

    @contextmanager
    def held(self, request: Request) -> Iterator[None]:
        """Hold the memory of a message's run, after other messages that hold it."""
        folder = self.folder(request)
        if folder is None or self._kept_in.is_in_process:
            yield
            return
        # Memories from after this context, or that are written from now on, are of later messages.
        known = self.memory.server_round or math.inf
        self._replaceable = [file for file in folder.files() if round_of(file) <= known]
        with locked(folder.path):
            yield

    def recall_for_training(self, request: Request) -> None:
        """Recall what a train message continues from; forget the run if it starts over."""
        server_round = request.server_round
        if request.starts_over:
            self._forget(request)
            return
        is_repeated = request.phase == TRAIN and self.memory.server_round >= server_round
        before_round = server_round if request.phase == TRAIN else server_round + 1
        self.recall(request, before_round, is_repeated)

    def recall(self, request: Request, before_round: int, is_repeated: bool = False) -> None:
        """Load the memory from disk if the context has none, an older or a dropped one.

        Memories of `before_round` or later are ignored. `is_repeated` says that the context has
        trained in this round before: the server repeats it after a crash. Raises
        `ForgottenRunError`, `DamagedMemoryError`, or `PolicyError` for the memory of another run.
        """
        self._require_own_files(request)
        folder = self.folder(request)
        if folder and self._is_behind(folder, before_round):
            self.memory.replace(Memory())
        is_dropped = self._is_dropped(request)
        if folder and (is_repeated or is_dropped or not self.memory.server_round):
            self.local.recall(folder, before_round)
            while self._is_dropped(request):
                self.local.recall(folder, self.memory.server_round)
        self._require_own(self.memory, request)

    def _is_behind(self, folder: MemoryFolder, before_round: int) -> bool:
        """Return whether another process has served a message since the context was handed out."""
        if self._kept_in.is_in_process:
            return False
        return folder.last_round(before_round) > self.memory.server_round

    def _is_dropped(self, request: Request) -> bool:
        """Return whether the run has since been continued from before the round of the memory."""
        known = self.memory.server_round
        return known > min(request.starts[self.memory.start :], default=known)

    def _forget(self, request: Request) -> None:
        """Forget the run, in the context and on disk; refuse the memory of another one."""
        self._require_own(self.memory, request)
        self._require_own_files(request)
        self.memory.replace(Memory())
        if folder := self.folder(request):
            folder.clear()

    def _require_own_files(self, request: Request) -> None:
        """Refuse a message whose run a run with other settings has left on disk, in any round."""
        folder = self.folder(request)
        if folder is None or self._kept_in.is_in_process:
            return
        # What is damaged has no use, whoever wrote it.
        with suppress(DamagedMemoryError):
            self._require_own(Memory(numbers=folder.numbers()), request)

    def _require_own(self, memory: Memory, request: Request) -> None:
        """Refuse to replace or to use the memory of another run or of other settings.

        Where one user owns everything, the server alone compares the settings of a continued run.
        So a run of an earlier version, which described them by other keys, can be continued.
        """
        if not (self._node.policy.trust_server or memory.belongs_to(self._owner(request))):
            reason = (
                "this node remembers the run with another id or other settings; start a new run"
            )
            raise PolicyError(reason)

    def _owner(self, request: Request) -> dict[str, float]:
        run, settings = SameObject(self._part.run), SameObject(self._part.settings)
        return owner_of_memory(request.run_id, run, settings)

    def note_round(self, request: Request) -> None:
        """Note that the memory includes the round of a message."""
        start = len(request.starts) or 1
        self.memory.note_round(request.server_round, self._owner(request), start)

    def keep(self, request: Request) -> None:
        """Keep the memory in the context and on disk. A message that fails before keeps nothing."""
        self._kept_in.keep(self.memory)
        folder, is_new = self.folder(request), request.trained_rounds > 0
        on_node = not self._kept_in.is_in_process
        # Where one process has all clients, the run directory writes one file for the round. The
        # rounds of a new client that joins after the training are its own.
        if folder is None or not (on_node or is_new) or not self.memory.holds_state:
            return
        folder.write(self.memory, self._replaceable)
        folder.sync(request.server_round)
        if on_node:
            forget_old_runs(folder, self._node.runs_kept)


@lru_cache(maxsize=4)
def owner_of_memory(run_id: str, same_run: SameObject, settings: SameObject) -> dict[str, float]:
    """Return a digest of a run's id and settings, as numbers that a memory can hold.

    By the id alone, a run could continue from a model that another run trained without noise.
    """
    run: RunConfig = same_run.value
    trained = run.strategy, run.dp_sgd, run.training, run.models, run.plan.seed
    text = repr((run_id, *trained, settings.value))
    digest = hashlib.sha256(text.encode()).digest()
    # Integers of six bytes are exact in a float.
    return {str(n): float(int.from_bytes(digest[n : n + 6])) for n in range(0, 30, 6)}
