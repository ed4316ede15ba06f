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
from fedkd_flwr.runs.start_from import require_fitting, require_start, upon_start
from fedkd_flwr.runs.summary import prefers_distilled

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
    "prefers_distilled",
    "read_checkpoint",
    "recorded_config",
    "remove_checkpoint",
    "require_fitting",
    "require_memories",
    "require_new",
    "require_same_clients",
    "require_start",
    "require_writable",
    "upon_start",
]
