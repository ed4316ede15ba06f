"""A client's memory on disk, in addition to Flower's context.

A context exists as long as its SuperNode or simulation. With a ``state-dir`` a client also writes
its memory to files, one per round, so that a restarted node or a resumed run can continue. The
last two rounds are kept, because the server may have to repeat the newest one.

Each run has its own folder, and the last few runs are kept. The memory of older runs is removed,
but a mark remains. A node that is asked to continue such a run refuses instead of starting over.

If one process handles all clients, they share an `Archive` in the folder ``RUN``, next to the
folders of the partitions.
"""

from collections.abc import Mapping
from logging import WARNING
from pathlib import Path

from flwr.app import Context, MetricRecord

from fedkd_flwr.clients.memory import LiveContext, forget
from fedkd_flwr.clients.memory_files import (
    MEMORIES,
    archived_places,
    memory_file,
    newest_before,
    prefix_of,
    read_memories,
    round_of,
    write_memories,
)
from fedkd_flwr.clients.unfinished import Unfinished, remove_notes
from fedkd_flwr.files import write_text
from strategies.core.flower import log

PROGRESS = "progress"
"""Name of the record with the round of the memory."""

ROUNDS_KEPT = 2
"""Number of rounds whose memory is kept on disk."""

RUNS_KEPT = 5
"""Number of runs whose memory is kept on disk, if the node config has no ``keep-runs``."""

FORGOTTEN = "forgotten"
"""Name of the file that marks the folder of a run whose memory was removed."""


ORDER = "runs.txt"
"""Name of the file, beside a client's folders of runs, with their names in the order of use."""


class ForgottenRunError(RuntimeError):
    """A run that continues after the node has removed its memory of it."""


def remembered_round(context: Context) -> int:
    """Return the last round in a context's memory, 0 for none."""
    record = context.state.metric_records.get(PROGRESS)
    return int(record["round"]) if record else 0  # type: ignore[arg-type]


def note_round(context: Context, server_round: int) -> None:
    """Note that a context's memory includes a round."""
    context.state[PROGRESS] = MetricRecord({"round": server_round})


def keep_context(
    context: Context, folder: Path | None, runs_kept: int, rounds_kept: int = ROUNDS_KEPT
) -> None:
    """Write a context's memory to its client's folder, if it has one, and remove old memories.

    A live context is skipped: its engine stores the memory of all its clients.
    """
    if folder is None or isinstance(context, LiveContext):
        return
    save_context(context, folder, rounds_kept)
    forget_old_runs(folder, runs_kept)


def save_context(context: Context, folder: Path, rounds_kept: int = ROUNDS_KEPT) -> None:
    """Write a context's memory to a client's folder, completely or not at all.

    Parameters
    ----------
    context : Context
        With its round noted.
    folder : Path
        The client's own folder of the run. Created if missing.
    rounds_kept : int
        Number of the client's rounds to keep, this one included.
    """
    newest = memory_file(folder, remembered_round(context))
    write_memories(newest, {"": context})
    (folder / FORGOTTEN).unlink(missing_ok=True)
    remove_notes(folder, remembered_round(context))
    # Memories of later rounds are from before the run was continued from an earlier round.
    own = [file for file in sorted(folder.glob(MEMORIES)) if file <= newest]
    for file in set(folder.glob(MEMORIES)).difference(own[-rounds_kept:]):
        file.unlink()


def _note_order(current: Path) -> list[str]:
    """Record that a run is the latest of a client; return all recorded runs, the latest last.

    The clock of a node may be wrong, and copying a folder changes the times of its files.
    """
    file = current.parent / ORDER
    before = file.read_text(encoding="utf-8").split() if file.exists() else []
    if before[-1:] == [current.name]:
        return before
    order = [*(name for name in before if name != current.name), current.name]
    write_text(file, "\n".join(order) + "\n", durable=True)
    return order


def forget_old_runs(current: Path, keep: int) -> None:
    """Remove the memories of all but the last few runs of a client.

    Parameters
    ----------
    current : Path
        The client's folder of the current run, next to those of other runs. It is kept, and
        counts as one of them.
    keep : int
        Number of runs to keep, the latest in the recorded order; 0 for all. Runs of older versions
        have none; they come first, by modification time.
    """
    order = _note_order(current)
    runs = [folder for folder in current.parent.iterdir() if next(folder.glob(MEMORIES), None)]
    places = {name: place for place, name in enumerate(order)}
    others = sorted(
        set(runs) - {current},
        key=lambda folder: (places.get(folder.name, -1), folder.stat().st_mtime),
    )
    too_many = max(0, len(others) + 1 - keep) if keep else 0
    for folder in others[:too_many]:
        log(
            WARNING,
            "Removing the memory of run %s: this node keeps %d runs (keep-runs)",
            folder.name,
            keep,
        )
        (folder / FORGOTTEN).touch()
        for memory in folder.glob(MEMORIES):
            memory.unlink()
        remove_notes(folder)


def recall(context: Context, folder: Path | None, server_round: int, phase: str) -> None:
    """Load the memory from disk if the context has none that fits the round.

    If a context has trained in this round before, the server repeats the round after a crash.
    The client then starts from the memory of the previous round. A live context is skipped: its
    engine loads the memory of all its clients.

    Parameters
    ----------
    context : Context
        Its state is replaced if the client has to start from the memory on disk.
    folder : Path or None
        The client's own folder of the run, if it has one.
    server_round : int
        The round of the message.
    phase : str
        ``train``, ``evaluate``, or the name of another exchange of the method.

    Raises
    ------
    ForgottenRunError
        If the memory was removed to make room for later runs.
    DamagedMemoryError
        If it cannot be read.
    """
    if isinstance(context, LiveContext):
        return
    remembered = remembered_round(context)
    is_repeated = phase == "train" and remembered >= server_round
    if folder is None or (remembered and not is_repeated):
        return
    before = server_round if phase == "train" else server_round + 1
    if not load_context(context, folder, before) and is_repeated:
        forget(context)


def unfinished(context: Context, folder: Path | None, server_round: int) -> Unfinished:
    """Return the notes on a client's progress with a message of a round.

    Parameters
    ----------
    context : Context
        The notes of a live context are in its engine's archive, like its memory.
    folder : Path or None
        The client's own folder of the run, if it has one.
    server_round : int
        The round of the message.
    """
    if folder is None:
        return Unfinished()
    place = _archive_beside(folder) if isinstance(context, LiveContext) else folder
    return Unfinished(place, int(folder.parent.name), server_round)


def start_over(context: Context, folder: Path | None) -> None:
    """Remove a client's memory of a run, in its context and on disk."""
    forget(context)
    if folder is None:
        return
    for memory in folder.glob(MEMORIES):
        memory.unlink()
    remove_notes(folder)


def load_context(context: Context, folder: Path, before_round: int) -> bool:
    """Load the newest memory from before a round into a context, its own or the archive's.

    Parameters
    ----------
    context : Context
        Its state is replaced if there is such a memory.
    folder : Path
        The client's own folder of the run, ``STATE-DIR/PARTITION-ID/RUN``.
    before_round : int
        Memories of this round or later are ignored.

    Returns
    -------
    bool
        Whether there was one.

    Raises
    ------
    ForgottenRunError
        If it was removed to make room for later runs.
    DamagedMemoryError
        If it cannot be read.
    """
    places = archived_places(_archive_beside(folder), before_round)
    file, prefix = newest_memory(folder, before_round, places)
    if file is None:
        return False
    read_memories(file, {prefix: context})
    return True


def newest_memory(
    folder: Path, before_round: int, places: Mapping[int, int]
) -> tuple[Path | None, str]:
    """Return the file with a client's newest memory from before a round, and the prefix in it.

    Parameters
    ----------
    folder : Path
        The client's own folder of the run, ``STATE-DIR/PARTITION-ID/RUN``.
    before_round : int
        Memories of this round or later are ignored.
    places : mapping of int to int
        The round of the archive's file with each client's memory, by partition-id.

    Returns
    -------
    tuple
        The client's own file with an empty prefix, or the archive's with a prefix, or None.

    Raises
    ------
    ForgottenRunError
        If it was removed to make room for later runs.
    """
    if (folder / FORGOTTEN).exists():
        raise ForgottenRunError(
            f"this node has removed its memory of run {folder.name} for later runs (keep-runs); "
            f"remove {folder} to start over"
        )
    n, own = int(folder.parent.name), newest_before(folder, before_round)
    if n in places and (own is None or round_of(own) <= places[n]):
        return memory_file(_archive_beside(folder), places[n]), prefix_of(n)
    return own, ""


def files_to_start_from(archive: Path, before_round: int) -> set[Path]:
    """Return the files with the newest memories from before a round of all clients on a machine.

    Parameters
    ----------
    archive : Path
        The archive's folder of the run, ``STATE-DIR/RUN``, which may be missing.
    before_round : int
        Memories of this round or later are ignored.

    Raises
    ------
    ForgottenRunError
        If a memory was removed to make room for later runs.
    DamagedMemoryError
        If the archive's newest file cannot be read.
    """
    places = archived_places(archive, before_round)
    own_folders = archive.parent.glob(f"[0-9]*/{archive.name}")
    clients = {*places, *(int(folder.parent.name) for folder in own_folders)}
    folders = (archive.parent / str(n) / archive.name for n in clients)
    files = (newest_memory(folder, before_round, places)[0] for folder in folders)
    return {file for file in files if file}


def _archive_beside(folder: Path) -> Path:
    """Return the archive's folder of a run, from a client's own folder of it."""
    return folder.parent.parent / folder.name
