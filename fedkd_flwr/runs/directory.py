"""The run directory, written during the run.

``docs/reference/run-directory.md`` lists its files. ``config.json`` is written first and marks a
run, ``summary.json`` is written last and marks a finished one.

Results are appended, never rewritten, so a crash loses at most one round. So does a power cut:
once a round, all files are written to the disk before the checkpoint that counts on them.

A run that is continued changes its files when the first new round is complete, so a failed
attempt changes nothing.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedkd_flwr.config.run_config import TRACKERS
from fedkd_flwr.data.clients import DataRecord
from fedkd_flwr.files import (
    append_array,
    as_lines,
    open_private,
    sync,
    write_arrays,
    write_json,
    write_text,
)
from fedkd_flwr.memory import Memory, SharedFolder, round_of
from fedkd_flwr.runs.checkpoint import (
    Checkpoint,
    forget_checkpoints_after,
    keep_last_checkpoint,
    notes_files,
    restart,
    write_checkpoint,
    write_notes,
)
from fedkd_flwr.runs.continuing import (
    CLIENTS,
    changed_settings,
    checkpoint_to_continue_from,
    described,
    newcomers,
    write_newcomers,
)
from fedkd_flwr.runs.folders import (
    RunDirectoryError,
    absolute,
    lock_directory,
    remove_empty,
    require_new,
    writing,
)
from fedkd_flwr.runs.provenance import ACCEPTED, python_here, python_of
from fedkd_flwr.runs.reading import MATRICES, Run, damaged, load_run, other_data
from fedkd_flwr.runs.recorded import names_of_code
from fedkd_flwr.runs.start_from import STARTED, begin_from_start
from fedkd_flwr.runs.summary import describe_leg, describe_run, summarize
from strategies.core.evaluations import Row
from strategies.core.flower import log
from strategies.core.rounds import Observer, RoundRecord

if TYPE_CHECKING:
    from fedkd_flwr.config import Configuration


class RunDirectory(Observer):
    """Writes one run, which `create` begins and `reopen` continues; locked until `close`.

    `newcomers` are clients that join without further rounds; `memories` returns those of clients in
    this process, which are written each round.
    """

    def __init__(self, path: Path, configuration: "Configuration") -> None:
        self.path = absolute(path)
        self._code = tuple(names_of_code(configuration.flat()))
        self.observers: list[Observer] = []
        self.newcomers: list[int] = []
        self.memories: Callable[[], Mapping[int, Memory]] = dict
        self._state_dir = configuration.run.state_dir
        self._started_at = monotonic()
        self._seconds_before = 0.0
        self._made: list[Path] = []
        self._there_before: set[Path] = set()
        self._is_new = False
        self._lock_file: IO[str] | None = None
        self._continued_as: Run | None = None
        self._sizes: dict[str, int] = {}
        self._appended: set[str] = set()

    @classmethod
    def create(
        cls, path: Path, configuration: "Configuration", data: DataRecord | None = None
    ) -> "RunDirectory":
        """Create the directory of a new run and record its config."""
        directory = cls(path, configuration)
        require_new(directory.path)
        folders = (directory.path, *directory.path.parents)
        directory._made = [folder for folder in folders if not folder.exists()]
        directory._there_before = {*directory.path.glob("*"), *global_models(directory.path)}
        directory._lock_file = lock_directory(directory.path)
        directory._is_new = True
        try:
            directory._describe(configuration, data)
        except (Exception, KeyboardInterrupt):
            directory.give_up()
            raise
        return directory

    @classmethod
    def reopen(
        cls, path: Path, configuration: "Configuration"
    ) -> tuple["RunDirectory", Checkpoint]:
        """Open the directory of a run to continue it; nothing is changed yet."""
        directory = cls(path, configuration)
        load_run(directory.path)  # no lock where there is no run
        directory._lock_file = lock_directory(directory.path)
        try:
            checkpoint = directory._continue(configuration)
        except Exception:
            directory.close()
            raise
        return directory, checkpoint

    @property
    def run_id(self) -> str:
        """The id under which clients store their memory; a resumed run has the same."""
        return Run(self.path).run_id

    @property
    def seconds(self) -> float:
        """Duration of the run so far, without the time of lost rounds."""
        return self._seconds_before + monotonic() - self._started_at

    def compare_data(self, digests: Mapping[str, str]) -> None:
        """Warn of data that are not those with which the run was started."""
        for key in other_data(self.run, digests):
            log(WARNING, "The %s of this run has changed since the run was started.", key)

    @property
    def run(self) -> Run:
        """The run as it is, without rounds that are repeated."""
        return self._continued_as or Run(self.path, self._code)

    def watched_by(self, observers: Iterable[Observer]) -> None:
        """Inform observers, in their order, of the start and all later events of the run."""
        for observer in observers:
            self.observers.append(observer)
            observer.run_started(self.run)

    def round_finished(self, record: RoundRecord) -> None:
        """Append a round; the checkpoint is written last and completes it."""
        try:
            self._begin_to_continue()
            self._begin_files(record)
            for name, matrix in record.matrices.items():
                append_array(self.path / MATRICES / f"{name}.npy", matrix)
            if record.global_model:
                model = global_model_file(self.path, record.server_round)
                model.parent.mkdir(exist_ok=True)
                write_arrays(model, record.global_model, durable=False)
            for name, rows in record.tables.items():
                self._append(f"{name}.jsonl", rows)
            sync_round(self.path, record.server_round, self._appended)
            if self._state_dir:  # the memories of clients elsewhere are written there
                folder = SharedFolder.of_run(absolute(self._state_dir), self.run_id)
                folder.write(self.memories(), record.server_round)
            write_checkpoint(self.path, record, self.seconds, sorted(self._appended))
            self._is_new = False
        except OSError as error:
            go_on = f"continue with `fedkd run --resume {self.path}`"
            raise RunDirectoryError(
                f"Round {record.server_round} cannot be written to {self.path} "
                f"({error.strerror or error}). Free space on the disk, then "
                f"{go_on if self._stays else 'start the run again'}."
            ) from error
        for observer in self.observers:
            observer.round_finished(record)

    def about_to_ask(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Save state that must survive if the round is interrupted."""
        with writing(self.path):
            write_notes(self.path, state)

    def global_model(self, server_round: int) -> dict[str, NDArray[Any]]:
        """Read the global model of a round."""
        file = global_model_file(self.path, server_round)
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            raise damaged(file, str(error), restart(self.path)) from None

    def newcomers_received(self, rows: list[Row]) -> None:
        """Record the rows of clients that joined after the last round; all others stay."""
        run, self._continued_as = self.run, None
        with writing(self.path):
            write_newcomers(run, rows)

    def finish(self) -> Run:
        """Write the summary, and return the finished run."""
        with writing(self.path):
            self._begin_to_continue()
            keep_last_checkpoint(self.path)
            summary = summarize(Run(self.path), self.seconds)
            write_json(self.path / "summary.json", summary)
        for observer in self.observers:
            observer.run_finished(summary)
        self.close()
        return Run(self.path, self._code)

    def give_up(self) -> None:
        """Stop early; remove what a new run without a complete round has written."""
        for observer in self.observers:
            observer.run_stopped()
        if self._stays:
            return
        self.close()
        named = {self.path / name for name in ("config.json", "split.json", *self._appended)}
        files = {*named, *global_models(self.path)}
        for file in files - self._there_before:
            file.unlink(missing_ok=True)
        folders = {self.path / name for name in (MATRICES, "checkpoint", *TRACKERS)}
        for folder in folders - self._there_before:
            shutil.rmtree(folder, ignore_errors=True)
        models = {self.path / "models"} - self._there_before
        remove_empty([*models, *self._made])

    def close(self) -> None:
        """Release the lock, so that other processes can continue the run."""
        if self._lock_file:
            self._lock_file.close()
        self._lock_file = None

    @property
    def _stays(self) -> bool:
        """Whether the run can be continued, and not started again, if it stops now."""
        return not self._is_new or any(map(Path.exists, notes_files(self.path)))

    def _describe(self, configuration: "Configuration", data: DataRecord | None) -> None:
        """Write what does not change; ``config.json``, which marks a run, comes first."""
        description = describe_run(configuration)
        if data:
            description["data"] = data.digests
        with writing(self.path):
            if configuration.run.start_from:
                digests = data.digests if data else {}
                begun = begin_from_start(self.path, description["id"], configuration, digests)
                description[STARTED] = begun
            write_json(self.path / "config.json", description)
            if data:
                lines = ",\n".join(json.dumps(row) for row in data.split)
                write_text(self.path / "split.json", f"[\n{lines}\n]\n", durable=True)
            for folder in (self.path, *self._made):
                sync(folder.parent)

    def _continue(self, configuration: "Configuration") -> Checkpoint:
        """Choose the checkpoint, and note what changes once a round is complete."""
        # The run may have finished while this process waited for the lock.
        run = load_run(self.path)
        changes = changed_settings(run, configuration)
        if changes:
            log(INFO, "Changed: %s", described(changes))
        if (before := python_of(run.description)) not in ("", python_here()):
            told = "The run was made with Python %s, and this is %s: numbers may differ"
            log(WARNING, told, before, python_here())
        checkpoint, lost = checkpoint_to_continue_from(run, configuration.run.state_dir)
        completed = checkpoint.completed_rounds
        if lost:
            log(WARNING, "A round is repeated, after round %d: %s", completed, lost)
        self.newcomers = newcomers(run, configuration)
        leg = describe_leg(configuration, completed, changes)
        if self.newcomers:
            # The config stays that of the clients that have trained.
            del changes[CLIENTS]
        config = {**run.config, **{key: value for key, (_, value) in changes.items()}}
        continued = [*run.description.get("continued", []), leg]
        description = {**run.description, "config": config, "continued": continued}
        description.pop(ACCEPTED, None)
        self._continued_as = run.continued(completed, description, checkpoint.sizes)
        self._sizes, self._appended = checkpoint.sizes, set(checkpoint.sizes)
        self._seconds_before = checkpoint.seconds
        return checkpoint

    def _begin_to_continue(self) -> None:
        """Drop what is newer than the checkpoint, and record how the run is continued."""
        run, self._continued_as = self._continued_as, None
        if not run:
            return
        completed = run.until or 0
        # In this order, a power cut in between leaves a run that continues after the same round.
        forget_checkpoints_after(run.path, completed)
        (run.path / "summary.json").unlink(missing_ok=True)
        sync(run.path)
        write_json(run.path / "config.json", run.description)
        for name, size in self._sizes.items():
            os.truncate(run.path / name, size)
        for model in global_models(run.path):
            if round_of(model) > completed:
                model.unlink()

    def _begin_files(self, record: RoundRecord) -> None:
        """Note the files of a round, and remove those that only a lost round has written."""
        tables = (f"{name}.jsonl" for name in record.tables)
        files = {*tables, *(f"{MATRICES}/{name}.npy" for name in record.matrices)}
        for name in files - self._appended:
            (self.path / name).unlink(missing_ok=True)
        self._appended |= files

    def _append(self, name: str, rows: list[Row]) -> None:
        with open_private(self.path / name, "a") as file:
            file.write(as_lines(rows))


def sync_round(run_directory: Path, server_round: int, appended: Iterable[str]) -> None:
    """Wait until the files of a round, and their names, are on the disk."""
    model = global_model_file(run_directory, server_round)
    folders = (run_directory, run_directory / MATRICES, run_directory / "models")
    files = (run_directory / name for name in appended)
    for path in (*files, *filter(Path.exists, (model, *folders))):
        sync(path)


def global_model_file(run_directory: Path, server_round: int) -> Path:
    """Return the file of the global model of a round."""
    return run_directory / "models" / f"global-{server_round:06d}.safetensors"


def global_models(run_directory: Path) -> list[Path]:
    """Return the files of the global models that a run has stored, in the order of rounds."""
    return sorted((run_directory / "models").glob("global-*.safetensors"))
