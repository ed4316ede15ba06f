"""What a client remembers between messages: recalled when one arrives, and kept at its end.

Flower gives a node every waiting message at once. If a training takes longer than the server waits,
the next one therefore starts in another process, with a context from before both. So a train
message holds the memory of its run on disk, and those after it wait and go on from what it kept.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import NumPyClient
from torch import nn

from fedkd_flwr.clients.local_training import local_training
from fedkd_flwr.clients.node import read_node
from fedkd_flwr.clients.policy import PolicyError
from fedkd_flwr.clients.request import TRAIN, Request
from fedkd_flwr.config import RunConfig
from fedkd_flwr.memory import (
    DamagedMemoryError,
    Memory,
    MemoryFolder,
    forget_old_runs,
    locked,
    own_context,
    read_numbers,
    round_of,
)
from strategies.core.plan import Settings


class StatefulClient(NumPyClient):
    """A client with its memory. `fedkd_flwr.clients.serving.ServingClient` has the messages.

    Parameters
    ----------
    context : Context
        Flower's context, with the client's memory.
    run : RunConfig
        The common run config.
    settings : Settings
        The settings of the method.

    Attributes
    ----------
    memory : Memory
        What the client remembers; changes are kept at the end of a train message.
    request : Request
        The message that is served.
    """

    keeps_model = True
    """Whether the client keeps its model between rounds instead of receiving one in each round."""

    def __init__(self, context: Context, run: RunConfig, settings: Settings) -> None:
        self.context = context
        self._kept_in = own_context(context)
        self.memory = self._kept_in.memory
        self.request = Request()
        self.run = run
        self.settings: Any = settings
        self.node = read_node(context.node_config, run)
        self.policy = self.node.policy
        self.local = local_training(run, self.node, self.memory)
        self.partition_id = self.node.partition_id
        self._replaceable: Collection[Path] | None = None

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """Its model."""

    @property
    def has_stored_model(self) -> bool:
        """Whether the memory has the client's model of an earlier training."""
        return "model" in self.memory.tensors

    @property
    def memory_folder(self) -> MemoryFolder | None:
        """The folder of the client's memory of the run, if it has one."""
        folder = self.node.memory_folder(self.request.run_id)
        return MemoryFolder(folder) if folder else None

    @property
    def _owner(self) -> dict[str, float]:
        return owner_of_memory(self.request.run_id, self.run, self.settings)

    @contextmanager
    def held_memory(self, request: Request) -> Iterator[None]:
        """Hold the memory of a message's run, after other messages that hold it."""
        self.request = request
        folder = self.memory_folder
        if folder is None or self._kept_in.is_in_process:
            yield
            return
        # Memories from after this context, or that are written from now on, are of later messages.
        known = self.memory.server_round or math.inf
        self._replaceable = [file for file in folder.files() if round_of(file) <= known]
        with locked(folder.path):
            yield

    def _recall_for(self, request: Request) -> None:
        """Recall what a train message continues from; forget the run if it starts over."""
        self.request, server_round = request, request.server_round
        if request.starts_over:
            self._forget()
            return
        is_repeated = request.phase == TRAIN and self.memory.server_round >= server_round
        self._recall(server_round if request.phase == TRAIN else server_round + 1, is_repeated)

    def _recall(self, before_round: int, is_repeated: bool = False) -> None:
        """Load the memory from disk if the context has none, an older or a dropped one.

        Parameters
        ----------
        before_round : int
            Memories of this round or later are ignored.
        is_repeated : bool
            Whether the context has trained in this round before. The server then repeats it after
            a crash, and the client starts from the memory of the round before.

        Raises
        ------
        ForgottenRunError
            If the memory was removed to make room for later runs.
        DamagedMemoryError
            If it cannot be read.
        PolicyError
            If it is the memory of another run or of other settings.
        """
        self._require_own_files()
        folder = self.memory_folder
        if folder and self._is_behind(folder, before_round):
            self.memory.replace(Memory())
        if folder and (is_repeated or self._is_dropped or not self.memory.server_round):
            self.local.recall(folder, before_round)
            while self._is_dropped:
                self.local.recall(folder, self.memory.server_round)
        self._require_own(self.memory)

    def _is_behind(self, folder: MemoryFolder, before_round: int) -> bool:
        """Return whether another process has served a message since the context was handed out."""
        if self._kept_in.is_in_process:
            return False
        return folder.last_round(before_round) > self.memory.server_round

    @property
    def _is_dropped(self) -> bool:
        """Whether the run has since been continued from before the round of the memory."""
        known = self.memory.server_round
        return known > min(self.request.starts[self.memory.start :], default=known)

    def _forget(self) -> None:
        """Forget the run, in the context and on disk.

        Raises
        ------
        PolicyError
            If it is the memory of another run or of other settings.
        """
        self._require_own(self.memory)
        self._require_own_files()
        self.memory.replace(Memory())
        if folder := self.memory_folder:
            folder.clear()

    def _require_own_files(self) -> None:
        """Refuse a message whose run a run with other settings has left on disk, in any round."""
        folder = self.memory_folder
        if folder is None or self._kept_in.is_in_process:
            return
        # What is damaged has no use, whoever wrote it.
        with suppress(DamagedMemoryError):
            if newest := folder.newest():
                self._require_own(Memory(numbers=read_numbers(newest)))

    def _require_own(self, memory: Memory) -> None:
        """Refuse to replace or to use the memory of another run or of other settings.

        Where one user owns everything, the server alone compares the settings of a continued run.
        So a run of an earlier version, which described them by other keys, can be continued.
        """
        if not (self.policy.trust_server or memory.belongs_to(self._owner)):
            reason = (
                "this node remembers the run with another id or other settings; start a new run"
            )
            raise PolicyError(reason)

    def _note(self, server_round: int) -> None:
        """Note the trained model in the memory, before an evaluation changes it, and the round."""
        if self.keeps_model:
            self.memory.save_model("model", self.model)
        self.memory.note_round(server_round, self._owner, len(self.request.starts) or 1)

    def _keep(self, server_round: int) -> None:
        """Keep the memory in the context and on disk. A message that fails before keeps nothing."""
        self._kept_in.keep(self.memory)
        folder = self.memory_folder
        if folder is None:
            return
        # Where one process has all clients, the run directory waits for the disk once a round.
        on_node = not self._kept_in.is_in_process
        folder.write(self.memory, on_node, self._replaceable)
        if on_node:
            folder.sync(server_round)
            forget_old_runs(folder, self.node.runs_kept)


def owner_of_memory(run_id: str, run: RunConfig, settings: Settings) -> dict[str, float]:
    """Return a digest of a run's id and settings, as numbers that a memory can hold.

    The id comes in a message. By it alone, a run could continue from a model that another run
    trained without noise, and account for its own noise only.
    """
    trained = run.strategy, run.dp_sgd, run.training, run.models, run.plan.seed
    text = repr((run_id, *trained, settings))
    digest = hashlib.sha256(text.encode()).digest()
    # Integers of six bytes are exact in a float.
    return {str(n): float(int.from_bytes(digest[n : n + 6])) for n in range(0, 30, 6)}
