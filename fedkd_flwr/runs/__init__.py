"""Run directories: written, continued, and read back."""

from fedkd_flwr.runs.checkpoint import Checkpoint, read_checkpoint, remove_checkpoint
from fedkd_flwr.runs.continuing import (
    ROUNDS,
    changeable,
    changed_settings,
    checkpoint_to_continue_from,
    described,
    require_memories,
    require_same_clients,
)
from fedkd_flwr.runs.directory import RunDirectory
from fedkd_flwr.runs.failures import failures_in_words
from fedkd_flwr.runs.folders import (
    CodeNotNamedError,
    DamagedRunError,
    RunDirectoryError,
    absolute,
    default_run_directory,
    require_new,
    require_writable,
)
from fedkd_flwr.runs.reading import Run, load_run
from fedkd_flwr.runs.recorded import names_of_code, recorded_config

__all__ = [
    "ROUNDS",
    "Checkpoint",
    "CodeNotNamedError",
    "DamagedRunError",
    "Run",
    "RunDirectory",
    "RunDirectoryError",
    "absolute",
    "changeable",
    "changed_settings",
    "checkpoint_to_continue_from",
    "default_run_directory",
    "described",
    "failures_in_words",
    "load_run",
    "names_of_code",
    "read_checkpoint",
    "recorded_config",
    "remove_checkpoint",
    "require_memories",
    "require_new",
    "require_same_clients",
    "require_writable",
]
