"""Which settings may change when a run goes on.

The numbers of a run that goes on are those of one that never stopped, so nothing that they
depend on may change, but for the number of rounds, which may grow.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.clients.memory_files import DamagedMemoryError, memory_file, require_readable
from fedkd_flwr.clients.state_dir import ForgottenRunError, files_to_start_from
from fedkd_flwr.config import PLACE_KEYS, ConfigError, Configuration, read_config
from fedkd_flwr.methods import METHODS, NAME, REGISTERED
from fedkd_flwr.own import not_held
from fedkd_flwr.runs.checkpoint import read_checkpoint, server_file
from fedkd_flwr.runs.errors import DamagedRunError, RunDirectoryError
from fedkd_flwr.runs.reading import Run

ROUNDS = "num-server-rounds"
"""The key of the planned rounds."""

OF_THE_CALL = ("output-dir", "resume")
"""Keys that say that a run goes on, and where it is now."""

MAY_CHANGE = (
    ROUNDS,
    # Clients would not find their memory in another folder.
    *(key for key in PLACE_KEYS if key not in (*OF_THE_CALL, "state-dir")),
)
"""Keys that say how long a run goes on, and where and how it takes place."""

Changes = dict[str, tuple[Any, Any]]
"""Old and new value of the keys that differ."""


def recorded_config(run: Run) -> dict[str, Any]:
    """Return the flat config that a run was started with; it may have been moved since.

    Raises
    ------
    DamagedRunError
        If it is no run config.
    RunDirectoryError
        If it was started with Python objects that this process does not have.
    """
    _require_objects(run)
    try:
        recorded = dict(read_config(run.config).flat())
    except ConfigError as error:
        raise DamagedRunError(
            f"{run.path / 'config.json'} holds no run config: {error} "
            "Continue with the version of fedkd-flwr that wrote it, or do the run again."
        ) from None
    was = Path(str(recorded["output-dir"]))
    for key in ("state-dir", "models-dir"):
        folder = Path(str(recorded[key]))
        if recorded["output-dir"] and folder.is_relative_to(was):
            recorded[key] = str(run.path / folder.relative_to(was))
    return recorded


def _require_objects(run: Run) -> None:
    """Refuse a run with Python objects that have to be passed to this process again."""
    strategy = str(run.config["strategy"])
    if NAME.fullmatch(strategy) and strategy not in {**METHODS, **REGISTERED}:
        raise RunDirectoryError(
            f"{run.path} used the method {strategy}, which was registered in Python: call "
            f"fedkd_flwr.register({strategy!r}, ...) in this process first."
        )
    missing = {key: name for key, value in run.config.items() for name in not_held(str(value))}
    if missing:
        named = ", ".join(f"{key} = {name}" for key, name in missing.items())
        again = ", ".join(f"{key.replace('-', '_')}=..." for key in missing)
        raise RunDirectoryError(
            f"{run.path} was started with Python objects ({named}): pass the same objects again, "
            f"as in fedkd_flwr.resume(path, {again})."
        )


def changeable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a flat run config that may be another when a run goes on."""
    return {key: config[key] for key in MAY_CHANGE}


def changed_settings(run: Run, wanted: Configuration) -> Changes:
    """Return what changes when a run goes on, after making sure that it can.

    Parameters
    ----------
    run : Run
        Stopped or finished.
    wanted : Configuration
        The config with which it is to go on.

    Returns
    -------
    dict of str to tuple
        Old and new value of the keys that differ.

    Raises
    ------
    RunDirectoryError
        If the run is finished and there are no more rounds to do, or its checkpoint is gone.
    ConfigError
        If a key differs that has to stay.
    """
    recorded = recorded_config(run)
    changes = {
        key: (recorded.get(key), value)
        for key, value in wanted.flat().items()
        if key not in OF_THE_CALL and value != recorded.get(key)
    }
    refused = [key for key in changes if key not in MAY_CHANGE]
    if refused:
        raise ConfigError(
            f"{run.path} goes on with the settings that it was started with, and "
            f"{', '.join(refused)} would differ; what may change is {', '.join(MAY_CHANGE)}."
        )
    _require_growth(wanted, recorded[ROUNDS])
    _require_continuable(run, wanted.run.plan.num_server_rounds)
    return changes


def described(changes: Changes) -> str:
    """Return changes in one line, ``num-server-rounds 20 → 40, device auto → cpu``."""
    return ", ".join(
        f"{key} {before if before != '' else 'none'} → {now if now != '' else 'none'}"
        for key, (before, now) in changes.items()
    )


def _require_growth(wanted: Configuration, before: int) -> None:
    """Refuse fewer rounds, and more where each depends on how many are planned."""
    run, now = wanted.run, wanted.run.plan.num_server_rounds
    if now < before:
        raise ConfigError(f"{ROUNDS} = {now} is less than the run's {before}; it can only grow.")
    if now == before:
        return
    another = f"so that {now} rounds are another run than {before}; do a new one."
    schedule = run.training.learning_rate_schedule
    if schedule != "constant":
        raise ConfigError(
            f"learning-rate-schedule = {schedule} spans the planned rounds, {another}"
        )
    if setting := run.method.strategy.spanning_setting(run.plan, wanted.settings):
        raise ConfigError(
            f"By {setting} the numbers of {run.strategy} depend on the planned rounds, {another}"
        )


def _require_continuable(run: Run, rounds: int) -> None:
    if not run.summary:
        return
    completed = run.summary["rounds"]
    if rounds <= completed:
        raise RunDirectoryError(
            f"{run.path} holds a finished run; nothing to resume, unless {ROUNDS} grows "
            f"above {completed}."
        )
    if not server_file(run.path).exists():
        raise RunDirectoryError(
            f"{run.path} holds a finished run without its checkpoint, which more rounds would "
            "start from; do a new run with more rounds."
        )


def require_memories(run: Run, state_dir: str) -> None:
    """Make sure that clients on this machine find what they remember of a run's last round.

    A client without its memory would start over in silence, in the middle of the run.

    Raises
    ------
    RunDirectoryError
        If rounds are complete and no client has a memory of the last, or one is damaged or was
        removed to make room for later runs.
    """
    completed = read_checkpoint(run.path).completed_rounds
    if not completed:
        return
    run_id = str(run.description.get("id", ""))
    if not run_id or not state_dir or not _any_remembers(run_id, Path(state_dir), completed):
        where = f"in the state-dir {state_dir}" if state_dir else "kept, for want of a state-dir"
        learned = f"what its clients learned in round {completed}"
        raise RunDirectoryError(f"{run.path} cannot go on: {learned} is not {where}.")
    try:
        for memory in files_to_start_from(Path(state_dir) / run_id, completed + 1):
            require_readable(memory)
    except DamagedMemoryError as error:
        raise DamagedRunError(str(error)) from None
    except ForgottenRunError as error:
        raise RunDirectoryError(f"{run.path} cannot go on: {error}.") from None


def _any_remembers(run_id: str, state_dir: Path, server_round: int) -> bool:
    """Return whether an archive of this process's clients, or a client, has memory of a round."""
    folders = (state_dir / run_id, *state_dir.glob(f"*/{run_id}"))
    return any(memory_file(folder, server_round).exists() for folder in folders)
