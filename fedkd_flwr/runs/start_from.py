"""A new run that starts from what another run has learned, with other settings.

The server's state and the memory of each client carry on: models, momentum, and what the method
keeps. Rounds and random draws begin anew. The config names the run as ``start-from``, and
``config.json`` records its id and rounds.
"""

from collections.abc import Iterator, Mapping
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedkd_flwr.clients.policy import has_noise
from fedkd_flwr.config import DATA_KEYS, ConfigError
from fedkd_flwr.memory import Memory, MemoryFolder
from fedkd_flwr.models.settings import ModelSettings
from fedkd_flwr.runs.checkpoint import Checkpoint, checkpoint_files, write_checkpoint
from fedkd_flwr.runs.continuing import require_memories
from fedkd_flwr.runs.folders import RunDirectoryError, absolute
from fedkd_flwr.runs.provenance import changed_code
from fedkd_flwr.runs.reading import Run, load_run, other_data
from fedkd_flwr.runs.recorded import names_of_code, recorded_config
from strategies.core.flower import log
from strategies.core.membership import MEMBERS
from strategies.core.rounds import RoundRecord

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration

START = "start-from"
"""The key of the run from which another one starts; ``{seed}`` in it stands for the seed."""

STARTED = "started_from"
"""The entry of ``config.json`` about that run: its path, id and rounds."""

OF_PLACE = ("output-dir", "state-dir", "models-dir", "resume", "accept-changes")
"""Keys that say where a run is, which another one does not take over."""

AS_BEFORE = (
    "strategy",
    "seed",
    "input-scaling",
    *DATA_KEYS,
    *(key for key in ModelSettings.flat_keys() if key != "initial-weights"),
)
"""Keys that must be those of the run before: method, architectures, and the clients' samples."""


def upon_start(start: Run | str | Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat run config of a run that starts from another: its settings, with changes.

    Raises `RunDirectoryError` if there is no such run, or it names code that the user has not.
    """
    before = start if isinstance(start, Run) else load_run(start)
    recorded = recorded_config(before, names_of_code(changes)).flat()
    kept = {key: value for key, value in recorded.items() if key not in OF_PLACE}
    return {**kept, START: str(before.path), **changes}


def require_start(wanted: "Configuration") -> tuple[Run, Checkpoint]:
    """Return the run that ``start-from`` names, and its newest checkpoint.

    Raises `RunDirectoryError` if there is no such run, it has no complete round, or what it has
    learned is gone; `ConfigError` if its method, architectures or clients are other ones.
    """
    named = wanted.run.start_from.replace("{seed}", str(wanted.run.plan.seed))
    before = load_run(named)
    recorded = recorded_config(before, names_of_code(wanted.flat()))
    there, here = recorded.flat(), wanted.flat()
    shared = (key for key in here if key.endswith(".shared-model"))
    for key in (*AS_BEFORE, *shared):
        if there.get(key) != here[key]:
            raise ConfigError(
                f"A run cannot start from {before.path} with another {key}: there it is "
                f"{there.get(key)}, here {here[key]}. Set {key} as there."
            )
    _require_no_noise(before, recorded, wanted)
    if recorded.run.method.record.keeps_global_models:
        raise ConfigError(
            f"A run of {recorded.run.strategy} cannot start from another one, whose last stage has "
            "ended it; add rounds with --resume."
        )
    if not before.round_rows or not checkpoint_files(before.path):
        raise RunDirectoryError(
            f"{before.path} has no checkpoint from which a run can start; a sweep removes those of "
            "its finished runs. Repeat it with `fedkd run`."
        )
    return before, require_memories(before, recorded.run)


def _require_no_noise(before: Run, recorded: "Configuration", wanted: "Configuration") -> None:
    """Refuse noise for privacy, which is accounted for within one run."""
    for configuration in (recorded, wanted):
        if has_noise(configuration.run, configuration.settings):
            raise ConfigError(
                f"A run cannot start from {before.path} where one of the two adds noise for "
                "privacy: epsilon is that of one run. Continue it with --resume."
            )


def begin_from_start(
    path: Path, run_id: str, wanted: "Configuration", data: Mapping[str, str]
) -> dict[str, Any]:
    """Write what a new run starts from into its directory, and return what describes it.

    `data` are the digests of its data. Raises as of `require_start`, and `RunDirectoryError` if the
    clients have other samples.
    """
    if not wanted.run.state_dir:
        raise ConfigError(f"{START} needs state-dir, the folder of the clients' memory.")
    before, checkpoint = require_start(wanted)
    if others := other_data(before, data):
        raise RunDirectoryError(
            f"A run cannot start from {before.path}: its clients had other samples, by the digest "
            f"of its {others[0]}."
        )
    for name in changed_code(before, wanted.flat()):
        told = "The code of %s has changed since %s: what that run has learned may not fit it."
        log(WARNING, told, name, before.path)
    folder = absolute(wanted.run.state_dir)
    for n, memory in _memories(before, checkpoint.completed_rounds, wanted):
        kept = MemoryFolder(folder / str(n) / run_id)
        kept.write(memory)
        kept.sync(memory.server_round)
    state = {k: array for k, array in checkpoint.state.items() if not k.startswith(MEMBERS)}
    write_checkpoint(path, RoundRecord(0, {}, state=state), 0.0, ())
    return {"path": str(before.path), "id": before.run_id, "rounds": checkpoint.completed_rounds}


def _memories(before: Run, completed: int, wanted: "Configuration") -> Iterator[tuple[int, Memory]]:
    """Yield what each client of a run remembers, as from before a first round."""
    run = recorded_config(before, names_of_code(wanted.flat())).run
    with_momentum = run.training.optimizer == wanted.run.training.optimizer
    for n in range(run.plan.num_clients):
        found = MemoryFolder(Path(run.state_dir) / str(n) / before.run_id).read(completed + 1)
        if found:
            yield n, found.for_new_run(with_momentum)


def require_fitting(
    wanted: "Configuration",
    begun: Mapping[str, NDArray[Any]],
    saved: Mapping[str, NDArray[Any]],
) -> None:
    """Refuse a state of another shape than the one that the method begins with.

    Raises `ConfigError` with the array.
    """
    for name in begun.keys() & saved.keys():
        if begun[name].size and begun[name].shape != saved[name].shape:
            raise ConfigError(
                f"A run cannot start from {wanted.run.start_from}: with these settings "
                f"{wanted.run.strategy} has {name} of shape {begun[name].shape}, and there it is "
                f"{saved[name].shape}."
            )
