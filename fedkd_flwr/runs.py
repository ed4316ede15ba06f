"""The run directory: written as a run goes, read back as pandas frames.

==================  =================================================================
``config.json``     everything needed to repeat the run, versions included
``rounds.jsonl``    one line a round
``clients.jsonl``   one line a client and round
``matrices.npz``    the method's matrices, one array each, rounds first
``models/``         global models of the methods that need them, ``global-ROUND``;
                    personalized models on request, by partition-id
``checkpoint/``     what a stopped run continues from, and the lock of the process that
                    writes; gone when the run is finished
``summary.json``    written last: it marks a finished run
==================  =================================================================

Files are appended to, never rewritten, so a crash loses at most one round. Until the run is
finished each round's matrices are files of their own in ``matrices/``.
"""

import contextlib
import errno
import json
import math
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from logging import WARNING
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from flwr.supercore import log
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedkd_flwr.config import Configuration
from fedkd_flwr.store import write_atomically
from strategies.base import PersonalizedStrategy
from strategies.core.rounds import RoundRecord

if sys.platform != "win32":
    import fcntl

PACKAGES = ("flwr", "torch", "torchvision", "numpy", "scikit-learn", "flwr-datasets")
"""Packages whose versions a run records."""

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""How a file system says that it knows no locks, as some network file systems do."""


class RunDirectoryError(OSError):
    """A run directory that cannot be written or read; the message is one sentence."""


def default_run_directory(configuration: Configuration, parent: Path) -> Path:
    """Return a new directory's path, named after method, data, seed and time."""
    run = configuration.run
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return (
        parent
        / f"{run.strategy}-{run.data.dataset}-{run.data.partition}-seed{run.plan.seed}-{stamp}"
    )


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stopped.

    Attributes
    ----------
    completed_rounds : int
        Rounds of the run that are complete.
    state : dict of str to ndarray
        The strategy's own state.
    global_arrays : dict of str to ndarray
        The global model, empty for methods that have none.
    """

    completed_rounds: int
    state: dict[str, NDArray[Any]]
    global_arrays: dict[str, NDArray[Any]]


class RunDirectory:
    """Writes one run; a `strategies.base.RunObserver`.

    One process at a time: `create` and `reopen` lock the directory until `close`, or until
    the process is gone, however it ends.

    Parameters
    ----------
    path : Path
        The run directory; see `create` and `reopen`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._started_at = time.time()
        self._lock_file: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, configuration: Configuration) -> "RunDirectory":
        """Make a directory for a new run and record its config.

        Raises
        ------
        RunDirectoryError
            If the directory cannot be made or written, or holds a run.
        """
        directory = cls(path)
        check_writable(directory.path)
        directory._lock()
        directory._write_json("config.json", describe_run(configuration))
        return directory

    @classmethod
    def reopen(cls, path: Path) -> tuple["RunDirectory", Checkpoint | None]:
        """Open the directory of a stopped run, and take back what its checkpoint lacks.

        Returns
        -------
        RunDirectory
            Goes on after the checkpoint's round.
        Checkpoint or None
            Where the run stopped; None if no round was completed.

        Raises
        ------
        RunDirectoryError
            If there is no run, it is finished, or another process is writing it.
        """
        directory = cls(path)
        load_run(directory.path).require_unfinished()
        directory._lock()
        # It may have come to its end just before the lock was free.
        load_run(directory.path).require_unfinished()
        checkpoint = read_checkpoint(directory.path)
        directory._forget_after(checkpoint.completed_rounds if checkpoint else 0)
        return directory, checkpoint

    @property
    def run_id(self) -> str:
        """The name under which clients remember the run; a resumed run has it too."""
        return str(Run(self.path).description.get("id", ""))

    def round_finished(self, record: RoundRecord, strategy: PersonalizedStrategy) -> None:
        """Append a round; the checkpoint comes last and completes it.

        Raises
        ------
        RunDirectoryError
            If the disk refuses; the run can be resumed from the round before.
        """
        try:
            self._append("clients.jsonl", record.clients)
            for name, matrix in record.matrices.items():
                self._keep_matrix(name, record.server_round, matrix)
            if strategy.keeps_global_models:
                self._save_global_model(record.server_round, strategy)
            self._append("rounds.jsonl", [record.row])
            write_checkpoint(self.path, strategy)
        except OSError as error:
            raise RunDirectoryError(
                f"Round {record.server_round} cannot be written to {self.path} "
                f"({error.strerror or error}); make room and continue with "
                f"`fedkd run --resume {self.path}`."
            ) from error
        for listener in self.listeners:
            listener(record.row)

    def finish(self) -> "Run":
        """Gather the matrices, write the summary, and return the finished run."""
        run = Run(self.path)
        matrices = run.matrices
        if matrices:
            temporary = self.path / ".matrices.npz"
            np.savez_compressed(temporary, **matrices)  # type: ignore[arg-type]
            temporary.replace(self.path / "matrices.npz")
            shutil.rmtree(self.path / "matrices", ignore_errors=True)
        self._write_json("summary.json", summarize(run, time.time() - self._started_at))
        # A network file system cannot remove what is open.
        self.close()
        shutil.rmtree(self.path / "checkpoint", ignore_errors=True)
        return Run(self.path)

    def close(self) -> None:
        """Let other processes continue the run."""
        if self._lock_file:
            self._lock_file.close()
        self._lock_file = None

    def _lock(self) -> None:
        """Keep other processes from writing here.

        The operating system frees the lock with the file, and so when the process is killed.

        Raises
        ------
        RunDirectoryError
            If another process holds the lock; with its name.
        """
        folder = self.path / "checkpoint"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "lock").open("a+")
        except OSError as error:
            reason = error.strerror or error
            raise RunDirectoryError(f"{folder} cannot be written: {reason}.") from None
        file.seek(0)
        if not _lock_exclusively(file):
            holder = file.read().strip() or "another process"
            file.close()
            raise RunDirectoryError(
                f"{self.path} is being written by {holder}; stop that run "
                "(`flwr stop`, or end the process) before you continue it."
            )
        # On a full disk the lock holds without a name.
        with contextlib.suppress(OSError):
            file.truncate()
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()} (since {now})")
            file.flush()
        self._lock_file = file

    def _forget_after(self, completed_rounds: int) -> None:
        """Drop lines and matrices of rounds that the checkpoint does not know of."""
        for name in ("rounds.jsonl", "clients.jsonl"):
            rows = _valid_lines(self.path / name)
            rows = [row for row in rows if row["round"] <= completed_rounds]
            temporary = self.path / f".{name}"
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
            temporary.replace(self.path / name)
        for file in (self.path / "matrices").glob("*.npy"):
            if int(file.stem.rpartition("-")[2]) > completed_rounds:
                file.unlink()

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows)
        with (self.path / name).open("a") as file:
            file.write(lines)

    def _keep_matrix(self, name: str, server_round: int, matrix: NDArray[Any]) -> None:
        folder = self.path / "matrices"
        folder.mkdir(exist_ok=True)
        np.save(folder / f"{name}-{server_round:06d}.npy", matrix)

    def _save_global_model(self, server_round: int, strategy: PersonalizedStrategy) -> None:
        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        arrays = {name: array.numpy() for name, array in strategy.global_arrays.items()}
        save_file(arrays, folder / f"global-{server_round:06d}.safetensors")

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        temporary = self.path / f".{name}"
        temporary.write_text(text)
        temporary.replace(self.path / name)


def _lock_exclusively(file: IO[str]) -> bool:
    """Lock a file for this process; return whether that worked, at once."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise RunDirectoryError(f"{file.name} cannot be locked: {error.strerror}.") from error
        log(
            WARNING,
            "%s is on a file system without locks: see that no second run writes there",
            Path(file.name).parent.parent,
        )
    return True


def write_checkpoint(run_directory: Path, strategy: PersonalizedStrategy) -> None:
    """Write a strategy's state, in place of the checkpoint before, whole or not at all."""
    folder = run_directory / "checkpoint"
    folder.mkdir(exist_ok=True)
    arrays = {f"state/{name}": np.ascontiguousarray(v) for name, v in strategy.state().items()}
    arrays |= {f"global/{name}": a.numpy() for name, a in strategy.global_arrays.items()}
    # A safetensors file cannot be without arrays, and `local` has none.
    arrays["completed_rounds"] = np.array([strategy.completed_rounds])
    write_atomically(folder / "server.safetensors", arrays, {})


def read_checkpoint(run_directory: Path) -> Checkpoint | None:
    """Read a run directory's checkpoint; None if no round was completed."""
    path = run_directory / "checkpoint" / "server.safetensors"
    if not path.exists():
        return None
    arrays = load_file(path)
    parts: dict[str, dict[str, NDArray[Any]]] = {"state": {}, "global": {}}
    for key, value in arrays.items():
        part, slash, name = key.partition("/")
        if slash:
            parts[part][name] = value
    return Checkpoint(int(arrays["completed_rounds"][0]), parts["state"], parts["global"])


def check_writable(path: Path) -> None:
    """Make sure that a run can be written to a directory, without leaving anything there.

    Raises
    ------
    RunDirectoryError
        If the directory holds a run, or cannot be made or written.
    """
    if (path / "config.json").exists():
        raise RunDirectoryError(f"{path} already holds a run; choose another output-dir.")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(
            f"The output directory {path} cannot be written: {reason}."
        ) from None
    finally:
        for folder in missing:
            if folder.exists():
                folder.rmdir()


def describe_run(configuration: Configuration) -> dict[str, Any]:
    """Return what ``config.json`` holds: the run config, versions and machine."""
    import torch  # deferred: only the writer needs it

    device = configuration.run.torch_device
    return {
        "id": uuid.uuid4().hex,
        "config": configuration.flat(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "torch_threads": torch.get_num_threads(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def summarize(run: "Run", seconds: float) -> dict[str, Any]:
    """Return what ``summary.json`` holds.

    Accuracy is reported at the last round, and at the round whose mean validation accuracy is
    best (the earliest of equals) where there is validation data; never at the best test round.
    """
    rounds = run.rounds
    evaluated = rounds[rounds["accuracy_mean"].notna()]
    names = [str(name) for name in rounds.columns]
    statistics = [name for name in names if name.startswith("accuracy") or name == "loss_mean"]
    chosen = None
    if evaluated["validation_accuracy_mean"].notna().any():
        best = int(evaluated["validation_accuracy_mean"].astype(float).argmax())
        chosen = _numbers(evaluated.iloc[best][["round", *statistics]])
    counted = ["numbers_up", "numbers_down", "numbers_down_broadcast", "bytes_up", "bytes_down"]
    return {
        "strategy": run.config["strategy"],
        "rounds": int(rounds["round"].iloc[-1]),
        "last_round": None
        if evaluated.empty
        else _numbers(evaluated.iloc[-1][["round", *statistics]]),
        "validation_round": chosen,
        **{name: int(rounds[name].sum()) for name in [*counted, "failures"]},
        "seconds": round(seconds, 3),
    }


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that JSON can hold: a loss that is no number becomes null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


def _numbers(row: pd.Series) -> dict[str, float | None]:
    return {str(name): None if pd.isna(value) else float(value) for name, value in row.items()}


@dataclass(frozen=True)
class Run:
    """A run directory, finished or not.

    Attributes
    ----------
    path : Path
        The directory.
    """

    path: Path

    @cached_property
    def description(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        content: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return content

    @property
    def config(self) -> dict[str, Any]:
        """The flat run config."""
        config: dict[str, Any] = self.description["config"]
        return config

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round."""
        return pd.DataFrame(_valid_lines(self.path / "rounds.jsonl"))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row a client and round."""
        return pd.DataFrame(_valid_lines(self.path / "clients.jsonl"))

    @cached_property
    def matrices(self) -> dict[str, NDArray[Any]]:
        """The method's matrices by name, shape (rounds, ...)."""
        gathered = self.path / "matrices.npz"
        if gathered.exists():
            with np.load(gathered) as archive:
                return dict(archive)
        rounds: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for file in sorted((self.path / "matrices").glob("*.npy")):
            rounds[file.stem.rpartition("-")[0]].append(np.load(file))
        return {name: np.stack(matrices) for name, matrices in rounds.items()}

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").exists()

    def require_unfinished(self) -> None:
        """Refuse to continue a finished run.

        Raises
        ------
        RunDirectoryError
            If the run came to its end.
        """
        if self.finished:
            raise RunDirectoryError(f"{self.path} holds a finished run; nothing to resume.")

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """Content of ``summary.json``; None for an unfinished run."""
        if not self.finished:
            return None
        content: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return content


def _valid_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; a last line cut off by a crash is passed over."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def load_run(path: str | Path) -> Run:
    """Open a run directory.

    Parameters
    ----------
    path : str or Path
        A directory that a run was written to.

    Returns
    -------
    Run
        With the frames `rounds` and `clients`, `matrices` and `summary`.

    Raises
    ------
    RunDirectoryError
        If there is no run.
    """
    directory = Path(path).expanduser().resolve()
    if not (directory / "config.json").exists():
        raise RunDirectoryError(f"{directory} holds no run (it has no config.json).")
    return Run(directory)
