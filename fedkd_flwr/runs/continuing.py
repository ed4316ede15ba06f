"""Which settings may change when a run is continued.

A continued run gives the same numbers as one that never stopped. So no setting that they depend
on may change, except that the number of rounds may grow.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkd_flwr.config import KEYS_WITHOUT_EFFECT, ConfigError, Configuration, RunConfig, lost_keys
from fedkd_flwr.files import as_lines, write_json, write_text
from fedkd_flwr.memory import DamagedMemoryError, ForgottenRunError, MemoryFolder, SharedFolder
from fedkd_flwr.runs.checkpoint import (
    Checkpoint,
    before_the_first_round,
    checkpoint_files,
    read_checkpoints,
    restart,
    server_file,
)
from fedkd_flwr.runs.folders import DamagedRunError, RunDirectoryError
from fedkd_flwr.runs.provenance import changed_code, other_major_versions
from fedkd_flwr.runs.reading import Run, damaged
from fedkd_flwr.runs.recorded import names_of_code, recorded_config
from strategies.core.evaluations import Row
from strategies.core.plan import PlanSettings
from strategies.core.rounds import NEW_CLIENTS
from strategies.core.state import saved_fields

ROUNDS, CLIENTS = "num-server-rounds", "num-clients"
"""The keys of the planned rounds, and of the clients, which may become more in a deployment."""

ACCEPT = "accept-changes"  # the key that allows a run to be continued with other versions

OF_THE_CALL = ("output-dir", "resume", ACCEPT)
"""Keys that say that a run is continued, where it is now, and how."""

MAY_CHANGE = (
    ROUNDS,
    # Clients would not find their memory in another folder.
    *(key for key in KEYS_WITHOUT_EFFECT if key not in (*OF_THE_CALL, "state-dir")),
)
"""Keys for the number of rounds, and for where and how a run is computed."""

Changes = dict[str, tuple[Any, Any]]  # old and new value of each key that differs


def changeable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a flat run config that may change, or is about how a run is continued."""
    return {key: config[key] for key in (*MAY_CHANGE, ACCEPT)}


def changed_settings(run: Run, wanted: Configuration) -> Changes:
    """Return old and new values of what changes in a continued run, if they may change."""
    if lost := lost_keys(run.config):
        named = ", ".join(f"{key} = {value}" for key, value in lost.items())
        raise RunDirectoryError(
            f"{run.path} cannot be continued: it ran with {named}, which this version does not "
            "have; continue with the version of fedkd-flwr that wrote it, or start a new run."
        )
    before = recorded_config(run, names_of_code(wanted.flat()))
    recorded = before.flat()
    changes = {
        key: (recorded.get(key), value)
        for key, value in wanted.flat().items()
        if key not in OF_THE_CALL and value != recorded.get(key)
    }
    if refused := [key for key in changes if key not in (*MAY_CHANGE, CLIENTS)]:
        raise ConfigError(
            f"{run.path} cannot be continued with another {', '.join(refused)}; "
            f"only {', '.join(MAY_CHANGE)} may change."
        )
    for objection in _objections(run, wanted, before.run.plan):
        raise objection
    return changes


def described(changes: Changes) -> str:
    """Describe changes in one line: ``num-server-rounds 20 → 40, device auto → cpu``."""
    return ", ".join(
        f"{key} {before if before != '' else 'none'} → {now if now != '' else 'none'}"
        for key, (before, now) in changes.items()
    )


def _objections(run: Run, wanted: Configuration, before: PlanSettings) -> Iterator[Exception]:
    """Yield why a run cannot be continued by a run config whose keys may all change."""
    plan, accepts = wanted.run.plan, wanted.run.accept_changes
    if plan.num_clients < before.num_clients:
        yield ConfigError(
            f"{CLIENTS} = {plan.num_clients} is less than the {before.num_clients} clients of the "
            "run; it can only grow."
        )
    if plan.num_clients > before.num_clients and plan.new_clients:
        yield ConfigError(
            f"{CLIENTS} cannot grow with new-clients above 0, which would draw other new clients."
        )
    if (others := other_major_versions(run.description)) and not accepts:
        yield RunDirectoryError(
            f"{run.path} was written with other major versions: {', '.join(others)}. Install those "
            "versions, or add --accept-changes (-c accept-changes=true) if the change is intended."
        )
    if others := [] if accepts else changed_code(run, wanted.flat()):
        yield RunDirectoryError(
            f"{run.path} was made with other code of {', '.join(others)}. Restore that code, or "
            "add --accept-changes (-c accept-changes=true) if the change is intended."
        )
    yield from _objections_to_rounds(wanted, before.num_server_rounds)
    if (run.path / "matrices.npz").exists():
        yield RunDirectoryError(
            f"{run.path} has its matrices in the format of version 0.1 (matrices.npz): continue "
            "with the version of fedkd-flwr that wrote it, or run it again."
        )
    completed = (run.summary or {}).get("rounds", 0)
    if run.summary and plan.num_server_rounds <= completed and not newcomers(run, wanted):
        yield RunDirectoryError(
            f"{run.path} holds a finished run; to add rounds, type "
            f"-c {ROUNDS}=N with N above {completed}."
        )
    if run.summary and not checkpoint_files(run.path):
        yield RunDirectoryError(
            f"{run.path} holds a finished run without its checkpoint, so nothing can be added; "
            "start a new run."
        )


def _objections_to_rounds(wanted: Configuration, before: int) -> Iterator[ConfigError]:
    run, now = wanted.run, wanted.run.plan.num_server_rounds
    if now < before:
        yield ConfigError(
            f"{ROUNDS} = {now} is less than the {before} rounds of the run; it can only grow."
        )
    if now == before:
        return
    schedule = run.training.learning_rate_schedule
    setting = run.method.strategy.spanning_setting(run.plan, wanted.settings)
    depends = setting and f"With {setting}, the results of {run.strategy} depend"
    if schedule != "constant":
        depends = f"learning-rate-schedule = {schedule} depends"
    if depends:
        yield ConfigError(f"{depends} on the planned rounds, so {now} rounds need a new run.")


def require_same_clients(changes: Changes) -> None:
    """Refuse another number of clients where one data set is divided among them."""
    if CLIENTS in changes:
        raise ConfigError(
            f"{CLIENTS} can grow only in a deployment, whose nodes have their own data: here the "
            "data set would be divided anew. In an experiment, set new-clients before the run."
        )


def checkpoint_to_continue_from(run: Run, state_dir: str) -> tuple[Checkpoint, str]:
    """Return the newest checkpoint that other files support, and why no newer one.

    A power cut or a damaged file can cost the newest one. Memories in `state_dir` are checked if
    they are on this machine.
    """
    lost: list[DamagedRunError] = []
    for checkpoint in _checkpoints(run):
        try:
            _require_tables(run, checkpoint)
            _require_readable_memories(run, state_dir, checkpoint.completed_rounds)
        except DamagedRunError as error:
            lost.append(error)
        else:
            return checkpoint, str(lost[0]) if lost else ""
    raise lost[0]


def _checkpoints(run: Run) -> list[Checkpoint]:
    """Return the checkpoints of a run, the newest first; the start if one round is lost."""
    found: list[Checkpoint] = []
    is_short = len(run.round_rows) <= 1
    try:
        found = read_checkpoints(run.path)
    except DamagedRunError:
        if not is_short:
            raise
    newest = found[0].completed_rounds if found else 1
    if not is_short and not newest:
        raise damaged(server_file(run.path), "it is missing", restart(run.path))
    if is_short and newest == 1:
        found.append(before_the_first_round(run.path))
    return found


def _require_tables(run: Run, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose rounds are not all in the tables and matrices."""
    rounds, remedy = checkpoint.completed_rounds, restart(run.path)
    for name, size in checkpoint.sizes.items():
        file = run.path / name
        if not file.exists() or file.stat().st_size < size:
            raise damaged(file, f"a part of the first {rounds} rounds is missing", remedy)
    run.require_rounds(rounds)


def _require_readable_memories(run: Run, state_dir: str, completed: int) -> None:
    """Refuse a checkpoint if memories are on this machine, but not those of its round."""
    folders = _memory_folders(run, state_dir)
    try:
        # Without any memory here, the nodes have it, or say themselves that they lack it.
        if not completed or not any(folder.newest() for folder in folders):
            return
        if not _any_remembers(folders, completed):
            raise DamagedRunError(_no_memory(run, state_dir, completed))
        for folder in folders:
            folder.require_readable(completed + 1)
    except DamagedMemoryError as error:
        raise DamagedRunError(str(error)) from None
    except ForgottenRunError as error:
        raise RunDirectoryError(f"{run.path} cannot be continued: {error}.") from None


def require_memories(run: Run, wanted: RunConfig) -> Checkpoint:
    """Return the checkpoint to continue from, if memories on this machine are of it."""
    state_dir = wanted.state_dir
    checkpoint, _ = checkpoint_to_continue_from(run, state_dir)
    if not _keep_state(wanted):
        return checkpoint
    completed, folders = checkpoint.completed_rounds, _memory_folders(run, state_dir)
    if completed and not _any_remembers(folders, completed):
        raise RunDirectoryError(_no_memory(run, state_dir, completed))
    return checkpoint


def _keep_state(run: RunConfig) -> bool:
    client = run.method.client
    keep_own = client.keeps_model or bool(saved_fields(client.State))
    return keep_own or bool(run.dp_sgd.noise_multiplier) or run.plan.safeguard.is_on


def _no_memory(run: Run, state_dir: str, completed: int) -> str:
    where = f"found in the state-dir {state_dir}" if state_dir else "kept without a state-dir"
    missing = f"its clients' memory of round {completed}"
    return f"{run.path} cannot be continued: {missing} is not {where}."


def _memory_folders(run: Run, state_dir: str) -> list[MemoryFolder | SharedFolder]:
    if not (state_dir and run.run_id):
        return []
    path, run_id = Path(state_dir), run.run_id
    return [*MemoryFolder.of_run(path, run_id), SharedFolder.of_run(path, run_id)]


def _any_remembers(folders: Iterable[MemoryFolder | SharedFolder], server_round: int) -> bool:
    return any(folder.file(server_round).exists() for folder in folders)


def newcomers(run: Run, wanted: Configuration) -> list[int]:
    """Return the ids of the clients that are to join a finished run, without more rounds."""
    planned = wanted.run.plan.num_server_rounds
    keeps_models = wanted.run.method.record.keeps_global_models
    if not run.summary or not keeps_models or planned != run.config[ROUNDS]:
        return []
    received = {row["partition_id"] for row in received_by(run) if row.get("failure") is None}
    ids = range(run.config[CLIENTS], wanted.run.plan.num_clients)
    return [n for n in ids if n not in received]


def received_by(run: Run) -> list[Row]:
    """Return the rows of the new clients that a run has received after its last round."""
    rounds = len(run.round_rows)
    return [row for row in run.further_rows.get(NEW_CLIENTS, []) if row["round"] == rounds]


def write_newcomers(run: Run, rows: Sequence[Row]) -> None:
    """Record that newcomers have joined, and their rows instead of those of failed attempts."""
    write_json(run.path / "config.json", run.description)
    new = {(row["round"], row["partition_id"]) for row in rows}
    before = run.further_rows.get(NEW_CLIENTS, [])
    kept = [row for row in before if (row["round"], row["partition_id"]) not in new]
    write_text(run.path / f"{NEW_CLIENTS}.jsonl", as_lines([*kept, *rows]), durable=True)
