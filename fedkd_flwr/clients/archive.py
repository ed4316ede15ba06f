"""The memories of all clients of one process on disk, one file per round with those that changed.

If 10 of 1,000 clients take part in a round, the round writes 10 memories. Each file records which
round's file has each client's memory. All memories are written again once as many have been added
as there are clients. The disk then holds at most three times the size of all memories, if they
are equally large.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, MetricRecord

from fedkd_flwr.clients.memory_files import (
    MEMORIES,
    archived_places,
    memory_file,
    places_in,
    prefix_of,
    read_memories,
    round_of,
    write_memories,
)
from fedkd_flwr.clients.state_dir import PROGRESS, ROUNDS_KEPT, newest_memory
from fedkd_flwr.clients.unfinished import remove_notes


class Archive:
    """Keeps the memories of all clients of a process in one folder.

    Parameters
    ----------
    folder : Path
        Folder of the run, ``STATE-DIR/RUN``. It is created if missing.
    rounds_kept : int
        Number of rounds from which the run can continue, the newest included.
    """

    def __init__(self, folder: Path, rounds_kept: int = ROUNDS_KEPT) -> None:
        self._folder = folder
        # The files that each round but the newest needs, one less than are kept.
        self._needed: deque[set[int]] = deque(maxlen=rounds_kept - 1)
        self._places: dict[int, int] = {}
        self._written: dict[int, MetricRecord] = {}
        self._added = 0

    def take_up(self, contexts: Mapping[int, Context], before_round: int) -> None:
        """Load the memories of clients into their contexts, from here or from their own folders.

        Parameters
        ----------
        contexts : mapping of int to Context
            By partition-id. The context of a client without a stored memory is not changed.
        before_round : int
            Memories of this round or later are ignored.

        Raises
        ------
        ForgottenRunError
            If a memory was removed to make room for later runs.
        DamagedMemoryError
            If one cannot be read.
        """
        self._places = archived_places(self._folder, before_round)
        for stored in sorted(self._folder.glob(MEMORIES)):
            if round_of(stored) < before_round:
                self._remember(round_of(stored), places_in(stored))
        by_file: dict[Path, dict[str, Context]] = defaultdict(dict)
        for n, context in contexts.items():
            own_folder = self._folder.parent / str(n) / self._folder.name
            file, prefix = newest_memory(own_folder, before_round, self._places)
            if file:
                by_file[file][prefix] = context
        for file, owners in by_file.items():
            read_memories(file, owners)

    def save(self, contexts: Mapping[int, Context], server_round: int) -> None:
        """Write the memories that changed since the last call, or all in the first call.

        The file is written completely or not at all, and is on the disk afterwards. The memories
        from which a repeated round would start are kept.

        Parameters
        ----------
        contexts : mapping of int to Context
            All contexts, by partition-id.
        server_round : int
            The round that is complete.
        """
        marks = _marks(contexts)
        changed = {n for n, mark in marks.items() if mark is not self._written.get(n)}
        self._added += len(changed)
        if self._added >= len(marks):
            changed, self._added = set(marks), 0
        # Remove files that only older rounds need first, so that a full disk has room for this one.
        needed = set().union(*self._needed)
        for file in self._folder.glob(MEMORIES):
            if round_of(file) not in needed:
                file.unlink()
        places = {**self._places, **dict.fromkeys(changed, server_round)}
        memories = {prefix_of(n): contexts[n] for n in sorted(changed)}
        write_memories(memory_file(self._folder, server_round), memories, places)
        self._places, self._written = places, marks
        self._remember(server_round, places)
        # The notes of this round stay until its checkpoint is written.
        remove_notes(self._folder, server_round)

    def _remember(self, server_round: int, places: Mapping[int, int]) -> None:
        """Note which files a round needs: its own, and those with the clients' memories."""
        self._needed.append({server_round, *places.values()})


def _marks(contexts: Mapping[int, Context]) -> dict[int, MetricRecord]:
    """Return each client's record that is replaced whenever its memory changes, by partition-id."""
    records = {n: context.state.metric_records.get(PROGRESS) for n, context in contexts.items()}
    return {n: record for n, record in records.items() if record is not None}
