"""Reading a run directory: settings, rounds, clients, matrices and summary."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.config import current_config
from fedkd_flwr.runs.arrays import ArraysError, read_arrays
from fedkd_flwr.runs.folders import DamagedRunError, RunDirectoryError, absolute
from fedkd_flwr.runs.provenance import legs_of
from strategies.core.flower import log
from strategies.core.pair_matrix import STARTS, whole_of

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
"""One line of ``rounds.jsonl``, ``clients.jsonl`` or a method's further table."""

Types = Mapping[str, type | tuple[type, ...]]
"""Names and types that a JSON object must hold."""

CONFIG: Types = {"strategy": str, "seed": int, "num-clients": int, "num-server-rounds": int}
"""Keys that every run config holds."""

RUN_ID = re.compile("[0-9a-f]*")
"""What the id of a run consists of."""

MATRICES = "matrices"
"""Folder with a file for each matrix of the method."""

OF_EVERY_RUN = ("rounds.jsonl", "clients.jsonl")
"""Tables that every run has."""

CLIENT_KEYS = ("round", "partition_id")
"""Keys that every line about a client holds."""

RESULT = (dict, type(None))
"""A round's accuracy, or null where no client was evaluated."""

SUMMARY: Types = {
    "strategy": str, "rounds": int, "seconds": float, "last_round": RESULT,
    "validation_round": RESULT, "numbers_up": int, "numbers_down": int, "bytes_up": int,
    "bytes_down": int, "failures": int,
}  # fmt: skip
"""Keys that every summary holds."""


@dataclass(frozen=True)
class Run:
    """A run directory, finished or not; see `load_run`.

    Attributes
    ----------
    path : Path
        The directory.
    allow_code : tuple of str
        Code that the user has named, see `fedkd_flwr.runs.recorded`. Other code that the config
        names is never imported.
    until : int, optional
        The last round to read, of a run that is continued after it; by default all.
    """

    path: Path
    allow_code: tuple[str, ...] = ()
    until: int | None = None

    @cached_property
    def description(self) -> dict[str, Any]:
        """Content of ``config.json``, with the run config in the keys of this version."""
        file = self.path / "config.json"
        description = _read_object(file, {"config": dict}, self._redo)
        _require_types(file, description["config"], CONFIG, self._redo)
        try:
            for leg, _ in legs_of(description) if description.get("started") else ():
                datetime.fromisoformat(leg["started"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise damaged(file, f"a time in it cannot be read: {error}", self._redo) from None
        return {**description, "config": current_config(description["config"])}

    @property
    def config(self) -> dict[str, Any]:
        """The flat run config."""
        config: dict[str, Any] = self.description["config"]
        return config

    @property
    def run_id(self) -> str:
        """The id under which clients store their memory; empty in runs of old versions."""
        run_id = str(self.description.get("id", ""))
        # It is joined to a path, and a run directory may come from somebody else.
        if not RUN_ID.fullmatch(run_id):
            raise damaged(self.path / "config.json", f"its id is {run_id[:40]!r}", self._redo)
        return run_id

    @cached_property
    def round_rows(self) -> list[Row]:
        """One row per round: rounds 1, 2, 3, … in order."""
        rows = self._rows("rounds.jsonl", ("round",))
        if [row["round"] for row in rows] != list(range(1, len(rows) + 1)):
            raise self._damaged_lines("rounds.jsonl", "rounds are missing or out of order")
        return rows

    @cached_property
    def client_rows(self) -> list[Row]:
        """One row per client and round."""
        return self._rows("clients.jsonl", CLIENT_KEYS)

    @cached_property
    def further_rows(self) -> dict[str, list[Row]]:
        """Rows of the method's further tables by name."""
        names = {file.stem for file in self.path.glob("*.jsonl")} - {"rounds", "clients"}
        return {name: self._rows(f"{name}.jsonl", CLIENT_KEYS) for name in sorted(names)}

    def table(self, name: str) -> "pd.DataFrame":
        """Return a further table of the method; empty if there is none of that name."""
        import pandas as pd

        return pd.DataFrame(self.further_rows.get(name, []))

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round."""
        import pandas as pd  # deferred: writing and continuing runs needs no data frames

        return pd.DataFrame(self.round_rows)

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per client and round."""
        import pandas as pd

        return pd.DataFrame(self.client_rows)

    @cached_property
    def last_evaluations(self) -> "pd.DataFrame":
        """The clients' rows at the last evaluated round of a finished run, by partition-id."""
        import pandas as pd

        clients, last_round = self.clients, (self.summary or {}).get("last_round")
        if "accuracy" not in clients or not last_round:
            return pd.DataFrame({"accuracy": pd.Series(dtype=float)})
        is_last = clients["round"] == last_round["round"]
        last = clients[is_last & clients["accuracy"].notna()]
        return last.set_index("partition_id").sort_index()

    @cached_property
    def matrices(self) -> dict[str, NDArray[Any]]:
        """The method's matrices by name, shape (rounds, ...).

        Entries of clients that have not trained yet are those of the start.
        """
        read = {name: self._matrices_of(name) for name in self.matrix_names}
        return {name: in_one_shape(rounds) for name, rounds in read.items() if rounds}

    @property
    def matrix_names(self) -> list[str]:
        """The names of the method's matrices, in alphabetical order."""
        names = (file.stem for file in (self.path / MATRICES).glob("*.npy"))
        return sorted(name for name in names if not name.endswith(STARTS))

    @property
    def finished(self) -> bool:
        """Whether the run is finished, and read to its end."""
        return self.until is None and (self.path / "summary.json").exists()

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """Content of ``summary.json``; None for an unfinished run."""
        if not self.finished:
            return None
        remedy = f"remove it, and `fedkd run --resume {self.path}` writes a new one"
        return _read_object(self.path / "summary.json", SUMMARY, remedy)

    def continued(self, after_round: int, description: dict[str, Any]) -> "Run":
        """Return the run up to a round, with the description of how it is continued."""
        run = Run(self.path, self.allow_code, after_round)
        # A cached property is kept there.
        vars(run)["description"] = description
        return run

    def check(self) -> None:
        """Read every file once, so that damage is found early.

        Raises
        ------
        DamagedRunError
            With the file, what is wrong with it, and the remedy.
        """
        _ = self.description, self.round_rows, self.client_rows, self.further_rows
        if self.summary:
            self.require_rounds(self.summary["rounds"])
        if (self.path / "matrices.npz").exists():
            log(WARNING, "%s: matrices.npz is a format of version 0.1 and is not read.", self.path)

    def require_rounds(self, rounds: int) -> None:
        """Check that no round is missing.

        Raises `DamagedRunError` if lines are missing.
        """
        if len(self.round_rows) < rounds:
            reason = f"it holds {len(self.round_rows)} of {rounds} rounds"
            raise self._damaged_lines("rounds.jsonl", reason)
        lost = set(range(1, rounds + 1)) - {row["round"] for row in self.client_rows}
        if lost:
            raise self._damaged_lines("clients.jsonl", f"it has no line of round {min(lost)}")
        for file in (self.path / MATRICES).glob("*.npy"):
            there = len(self._rounds_of(file))
            if there < rounds:
                raise self._damaged_matrix(file, f"it holds {there} of {rounds} rounds")

    def _rows(self, name: str, keys: tuple[str, ...]) -> list[Row]:
        """Return the rows of a file of JSON lines; an incomplete last line is ignored."""
        file = self.path / name
        if not file.exists():
            return []
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise self._damaged_lines(name, _reason(error)) from None
        rows: list[Row] = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number == len(lines):
                    break
                raise self._damaged_lines(name, f"line {number}: {_reason(error)}") from None
            _require_types(file, rows[-1], dict.fromkeys(keys, int), self._remedy_for(name))
        return [row for row in rows if row["round"] <= self._last_round]

    def _matrices_of(self, name: str) -> list[NDArray[Any]]:
        """Return a matrix at the end of each round, with all clients."""
        file, starts = (self.path / MATRICES / f"{name}{part}.npy" for part in ("", STARTS))
        rounds = self._rounds_of(file)[: self.until]
        if not starts.exists():
            return rounds
        try:
            return list(map(whole_of, rounds, self._rounds_of(starts)))
        except (ValueError, IndexError) as error:
            raise self._damaged_matrix(starts, str(error)) from None

    def _rounds_of(self, file: Path) -> list[NDArray[Any]]:
        """Return a matrix at the end of each round."""
        try:
            return read_arrays(file)
        except ArraysError as error:
            raise self._damaged_matrix(file, str(error)) from None

    @property
    def _last_round(self) -> float:
        """The last round to read."""
        return math.inf if self.until is None else self.until

    @property
    def _redo(self) -> str:
        """The remedy for a damaged file that is necessary."""
        return f"restore it from a copy, or remove {self.path} and run it again"

    def _remedy_for(self, name: str) -> str:
        """Return the remedy for a damaged table; only those of every run are necessary."""
        if name in OF_EVERY_RUN:
            return self._redo
        return "restore it from a copy, or move it elsewhere to read the run without this table"

    def _damaged_lines(self, name: str, reason: str) -> DamagedRunError:
        return damaged(self.path / name, reason, self._remedy_for(name))

    def _damaged_matrix(self, file: Path, reason: str) -> DamagedRunError:
        name = file.stem.removesuffix(STARTS)
        files = (file.with_name(f"{name}{part}.npy") for part in ("", STARTS))
        stored = " and ".join(path.name for path in files if path.exists())
        remedy = f"restore it from a copy, or remove {stored} to read the run without this matrix"
        return damaged(file, reason, remedy)


def load_run(path: str | Path, allow_code: str | Iterable[str] = ()) -> Run:
    """Open a run directory after checking that all of it can be read.

    Opening imports nothing. What rebuilds a model, data or method of the run later imports code
    that its config names only if `allow_code` names it too.

    Parameters
    ----------
    path : str or Path
        The run directory.
    allow_code : str or iterable of str
        Packages, modules or objects that the config may name, such as ``my_package``.

    Returns
    -------
    Run
        With the frames `rounds` and `clients`, `matrices` and `summary`.

    Raises
    ------
    RunDirectoryError
        If there is no run.
    DamagedRunError
        If a file of it cannot be read.
    """
    directory = absolute(path)
    if not (directory / "config.json").exists():
        raise RunDirectoryError(f"{directory} holds no run (it has no config.json).")
    run = Run(directory, (allow_code,) if isinstance(allow_code, str) else tuple(allow_code))
    run.check()
    return run


def damaged(file: Path, reason: str, remedy: str) -> DamagedRunError:
    """Return the error for a file that cannot be read."""
    return DamagedRunError(f"{file} is damaged ({reason}); {remedy}.")


def _read_object(file: Path, needed: Types, remedy: str) -> dict[str, Any]:
    """Read a JSON object and check its names and types."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(file, _reason(error), remedy) from None
    _require_types(file, content, needed, remedy)
    result: dict[str, Any] = content
    return result


def _require_types(file: Path, content: Any, needed: Types, remedy: str) -> None:
    if not isinstance(content, dict):
        raise damaged(file, "it holds no JSON object", remedy)
    for name, kind in needed.items():
        if name not in content or not isinstance(content[name], kind):
            raise damaged(file, f"{name} is missing or has the wrong type", remedy)


def _reason(error: Exception) -> str:
    """Return why a file cannot be read, in one line without its path."""
    return str(getattr(error, "strerror", None) or error)


def in_one_shape(matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack matrices of rounds, (rounds, ...); a run may have been continued with more clients.

    Entries of clients that had not joined are NaN, or -1 in integers.
    """
    shape = np.max([matrix.shape for matrix in matrices], axis=0).astype(int)
    filler = np.nan if np.issubdtype(matrices[0].dtype, np.floating) else -1
    stacked = np.full((len(matrices), *shape), filler, dtype=matrices[0].dtype)
    for matrix, place in zip(matrices, stacked, strict=True):
        place[tuple(map(slice, matrix.shape))] = matrix
    return stacked
