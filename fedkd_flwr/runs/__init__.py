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
from fedkd_flwr.runs.folders import (
    CodeNotNamedError,
    DamagedRunError,
    RunDirectoryError,
    absolute,
    default_run_directory,
    require_new,
    require_writable,
    writing,
)
from fedkd_flwr.runs.reading import Run, load_run
from fedkd_flwr.runs.recorded import names_of_code, recorded_config
from fedkd_flwr.runs.start_from import require_fitting, require_start, upon_start
from fedkd_flwr.runs.summary import failures_in_words, prefers_distilled
