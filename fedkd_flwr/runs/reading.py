"""Reading a run directory: settings, rounds, clients, matrices and summary."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from html import escape
from itertools import product
from logging import WARNING
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkd_flwr.config import current_config
from fedkd_flwr.custom_objects.importing import shown_data
from fedkd_flwr.files import ArraysError, read_arrays
from fedkd_flwr.runs.folders import DamagedRunError, RunDirectoryError, absolute
from strategies.core.evaluations import (
    COLUMNS,
    EVALUATIONS,
    Row,
    evaluation_row,
    with_evaluations,
    with_statistics,
)
from strategies.core.flower import log
from strategies.core.metrics import MODELS, SPLITS, Counts, column_prefix
from strategies.core.state import STARTS, whole_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from torch import nn

Types = Mapping[str, type | tuple[type, ...]]  # names and types that a JSON object must hold

CONFIG: Types = {"strategy": str, "seed": int, "num-clients": int, "num-server-rounds": int}
"""Keys that every run config holds."""

RUN_ID = re.compile("[0-9a-f]*")  # what the id of a run consists of
MATRICES = "matrices"  # folder with a file for each matrix of the method
MODELS_OF_CLIENTS = "fedkd_flwr.analysis.client_models"  # what rebuilds the models of a run

OF_EVERY_RUN = ("rounds", "clients", EVALUATIONS)
"""Tables that every run has; the last one since version 0.2."""

CLIENT_KEYS: Types = {"round": int, "partition_id": int}
"""Keys that every line about a client holds."""

KEYS: Mapping[str, Types] = {
    "rounds": {"round": int},
    EVALUATIONS: {
        "round": int, "client": int, "model": str, "split": str, "correct": int, "total": int,
        "loss": (int, float, type(None)),
    },
}  # fmt: skip
"""Keys that every line of a table holds, if not `CLIENT_KEYS`."""

RESULT = (dict, type(None))  # a round's accuracy, or null where no client was evaluated

ACCURACIES = ("accuracy", *(f"accuracy_{name}" for name in ("mean", "min", "max", "weighted")))
"""Columns that hold parts of 1, each also of the validation data."""

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
        return self.description["config"]

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
        """One row per round, with accuracies: rounds 1, 2, 3, … in order."""
        rows = self.stored("rounds")
        clients: dict[int, list[Row]] = defaultdict(list)
        for row in self.client_rows:
            clients[row["round"]].append(row)
        # Versions before 0.2 wrote accuracies into each row.
        return [
            row if "accuracy_mean" in row else with_statistics(row, clients[row["round"]])
            for row in rows
        ]

    @cached_property
    def client_rows(self) -> list[Row]:
        """One row per client and round, with accuracies."""
        return with_evaluations(self.stored("clients"), self.evaluation_rows)

    @cached_property
    def evaluation_rows(self) -> list[Row]:
        """One row per round, client, model and split, also of versions before this table."""
        before = [found for row in self.stored("clients") for found in evaluations_in(row)]
        return [*before, *self.stored(EVALUATIONS)]

    @cached_property
    def further_rows(self) -> dict[str, list[Row]]:
        """Rows of the method's further tables by name."""
        names = {file.stem for file in self.path.glob("*.jsonl")}.difference(OF_EVERY_RUN)
        return {name: self.stored(name) for name in sorted(names)}

    def rounds_after(self, server_round: int) -> list[Row]:
        """Return the rows of rounds after one; without any, no other table is read."""
        return self.round_rows[server_round:] if len(self.stored("rounds")) > server_round else []

    def table(self, name: str) -> "pd.DataFrame":
        """Return a further table of the method; empty if there is none of that name."""
        return _frame(self.further_rows.get(name, []))

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row per round."""
        return _frame(self.round_rows)

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One row per client and round."""
        return _frame(self.client_rows)

    @cached_property
    def evaluations(self) -> "pd.DataFrame":
        """One row per evaluation: round, client, model, split, correct, total and loss."""
        return _frame(self.evaluation_rows, columns=[*COLUMNS])

    @cached_property
    def last_evaluations(self) -> "pd.DataFrame":
        """The clients' rows at the last evaluated round of a finished run, by partition-id."""
        clients, last_round = self.clients, (self.summary or {}).get("last_round")
        if "accuracy" not in clients or not last_round:
            return _frame({"accuracy": []}, dtype=float)
        is_last = clients["round"] == last_round["round"]
        last = clients[is_last & clients["accuracy"].notna()]
        return last.set_index("partition_id").sort_index()

    @cached_property
    def matrices(self) -> dict[str, NDArray[Any]]:
        """The method's matrices by name, shape (rounds, ...)."""
        read = {name: self._matrices_of(name) for name in self.matrix_names}
        return {name: in_one_shape(rounds) for name, rounds in read.items() if rounds}

    @property
    def matrix_names(self) -> list[str]:
        """The names of the method's matrices, in alphabetical order."""
        names = (file.stem for file in (self.path / MATRICES).glob("*.npy"))
        return sorted(name for name in names if not name.endswith(STARTS))

    # What follows needs the rest of the package, which reads runs.

    def model(self, partition_id: int) -> "nn.Module":
        """Return the personalized model of a client at the end, in evaluation mode.

        It is read from the run's ``models-dir``, or from the client's stored state where clients
        keep the evaluated model. A file can hold the model after the last distillation, where
        validation data prefer it; its accuracy is ``distilled_accuracy``, and the log says so.
        Raises `RunDirectoryError` if there is none, `ValueError` if there is no such client.

        Examples
        --------
        >>> model = fedkd_flwr.load_run("runs/first").model(0)
        >>> data = fedkd_flwr.client_data(fedkd_flwr.load_run("runs/first"), 0)
        >>> model(data.test_images).shape == (len(data.test_labels), 10)
        True
        """
        return resolve_name(f"{MODELS_OF_CLIENTS}:client_model")(self, partition_id)

    def predict(self, partition_id: int, samples: "ArrayLike") -> NDArray[np.int64]:
        """Return the classes, shape (n,), that a client's model gives to new samples.

        Samples are as they are before scaling: uint8 images (n, channels, height, width), the
        channel optional in gray ones, or the numbers of a table. Errors are those of `model`, and
        `ValueError` for another shape, and for floating-point numbers where images are whole ones.

        Examples
        --------
        >>> blank = np.zeros((2, 28, 28), dtype=np.uint8)
        >>> fedkd_flwr.load_run("runs/first").predict(0, blank).shape
        (2,)
        """
        of_clients = resolve_name(f"{MODELS_OF_CLIENTS}:predict")
        return of_clients(self, partition_id, samples)

    def soft_predictions(self, server_round: int | None = None) -> NDArray[np.float32]:
        """Return what each client's model predicts on the public samples, after the last round.

        Shape (clients, samples, classes), at temperature 1. Of earlier rounds no models are kept:
        `ValueError` says how to have them. Other errors are those of `model`.

        Examples
        --------
        >>> fedkd_flwr.load_run("runs/first").soft_predictions().shape
        (3, 200, 10)
        """
        return resolve_name(f"{MODELS_OF_CLIENTS}:soft_predictions")(self, server_round)

    @cached_property
    def client_names(self) -> dict[int, str]:
        """Names by partition-id: of silos, or of the folders or rows that a client consists of."""
        names = {row["partition_id"]: row["name"] for row in self.client_rows if row.get("name")}
        file = self.path / "split.json"
        if names or not file.exists():
            return names
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))
            return {
                row["partition_id"]: ", ".join(map(str, row["values"]))
                for row in rows
                if row.get("values")
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(file, _reason(error), "restore it from a copy, or remove it") from None

    @property
    def coefficients(self) -> "pd.DataFrame":
        """The method's matrix after the last round, receivers in rows and givers in columns.

        Clients have their names, or else their partition-ids. Raises `ValueError` for a method
        without such a matrix.
        """
        square = {
            name: rounds[-1]
            for name, rounds in self.matrices.items()
            if rounds.ndim == 3 and rounds.shape[1] == rounds.shape[2]
        }
        if not square:
            raise ValueError(f"{self.config['strategy']} has no matrix of receivers and givers.")
        matrix = square.get("coefficients", next(iter(square.values())))
        names = [self.client_names.get(n, n) for n in range(len(matrix))]
        named = _frame(matrix, index=names, columns=names)
        return named.rename_axis(index="receiver", columns="giver")

    def plot(self) -> "Figure":
        """Draw the mean accuracy over rounds, and the spread over clients."""
        return resolve_name("fedkd_flwr.plots:plot_run")(self)

    def _repr_html_(self) -> str:
        config, rows = self.config, self.round_rows
        last = next((row for row in reversed(rows) if row["accuracy_mean"] is not None), None)
        shares = {"accuracy": "accuracy_mean", "worst client": "accuracy_min"}
        state = "" if self.finished else ", not finished"
        card = {
            "method": config["strategy"],
            "data": shown_data(config.get("dataset", "")),
            "split": f"{config.get('partition', '')}, seed {config['seed']}",
            "clients": config["num-clients"],
            "rounds": f"{len(rows)} of {config['num-server-rounds']}{state}",
            **{name: f"{last[key]:.1%}" for name, key in shares.items() if last},
            "path": self.path,
        }
        cells = (f"<tr><th>{name}</th><td>{escape(str(v))}</td></tr>" for name, v in card.items())
        return f"<table>{''.join(cells)}</table>"

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

    def continued(
        self, after_round: int, description: dict[str, Any], sizes: Mapping[str, int]
    ) -> "Run":
        """Return the run up to a round, and up to the bytes of its files at the end of it."""
        run = Run(self.path, self.allow_code, after_round)
        # Cached properties are kept there.
        vars(run).update(description=description, _sizes=sizes)
        return run

    def check(self) -> None:
        """Read every file once, so that damage is found early."""
        _ = self.description, self.round_rows
        evaluated = self.stored(EVALUATIONS)
        tables = {
            EVALUATIONS: [
                {**row, "accuracy": row["correct"] / max(row["total"], 1)} for row in evaluated
            ],
            **{name: self.stored(name) for name in ("clients", "rounds", *self.further_rows)},
        }
        for name, rows in tables.items():
            for reason in filter(None, map(_impossible_accuracy, rows)):
                raise self._damaged_lines(name, reason)
        if self.summary:
            self.require_rounds(self.summary["rounds"])
            chosen = self.summary["validation_round"]
            if chosen and (reason := _impossible_accuracy(chosen)):
                raise damaged(self.path / "summary.json", reason, self._redo)
        if (self.path / "matrices.npz").exists():
            log(WARNING, "%s: matrices.npz is a format of version 0.1 and is not read.", self.path)

    def require_rounds(self, rounds: int) -> None:
        """Check that no round is missing."""
        if len(self.round_rows) < rounds:
            reason = f"it holds {len(self.round_rows)} of {rounds} rounds"
            raise self._damaged_lines("rounds", reason)
        lost = set(range(1, rounds + 1)) - {row["round"] for row in self.client_rows}
        if lost:
            raise self._damaged_lines("clients", f"it has no line of round {min(lost)}")
        last = (self.summary or {}).get("last_round")
        if last and self.round_rows[int(last["round"]) - 1]["accuracy_mean"] is None:
            raise self._damaged_lines(EVALUATIONS, f"it has no line of round {last['round']:.0f}")
        for file in (self.path / MATRICES).glob("*.npy"):
            there = len(self._rounds_of(file))
            if there < rounds:
                raise self._damaged_matrix(file, f"it holds {there} of {rounds} rounds")

    def stored(self, name: str) -> list[Row]:
        """Return the rows of a table as they are stored; an incomplete last line is ignored."""
        if name not in self._stored:
            self._stored[name] = self._read_rows(name)
        return self._stored[name]

    @cached_property
    def _stored(self) -> dict[str, list[Row]]:
        return {}

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """Bytes to read of a table, by file name; by default all."""
        return {}

    def _read_rows(self, name: str) -> list[Row]:
        file = self.path / f"{name}.jsonl"
        if not file.exists():
            return []
        try:
            content = file.read_bytes()[: self._sizes.get(file.name)]
            lines = content.decode("utf-8").splitlines()
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
            _require_types(file, rows[-1], KEYS.get(name, CLIENT_KEYS), self._remedy_for(name))
        if name == "rounds" and [row["round"] for row in rows] != list(range(1, len(rows) + 1)):
            raise self._damaged_lines("rounds", "rounds are missing or out of order")
        return [row for row in rows if self.until is None or row["round"] <= self.until]

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
        try:
            return read_arrays(file)
        except ArraysError as error:
            raise self._damaged_matrix(file, str(error)) from None

    @property
    def _redo(self) -> str:
        return f"restore it from a copy, or remove {self.path} and run it again"

    def _remedy_for(self, name: str) -> str:
        """Return the remedy for a damaged table; only those of every run are necessary."""
        if name in OF_EVERY_RUN:
            return self._redo
        return "restore it from a copy, or move it elsewhere to read the run without this table"

    def _damaged_lines(self, name: str, reason: str) -> DamagedRunError:
        return damaged(self.path / f"{name}.jsonl", reason, self._remedy_for(name))

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
        With the frames `rounds`, `clients` and `evaluations`, `matrices` and `summary`.

    Raises
    ------
    RunDirectoryError
        If there is no run.
    DamagedRunError
        If a file of it cannot be read.

    Examples
    --------
    >>> run = fedkd_flwr.load_run("runs/first")
    >>> run.coefficients.shape
    (3, 3)
    """
    directory = absolute(path)
    if not (directory / "config.json").exists():
        raise RunDirectoryError(f"{directory} holds no run (it has no config.json).")
    run = Run(directory, (allow_code,) if isinstance(allow_code, str) else tuple(allow_code))
    run.check()
    return run


def evaluations_in(row: Row) -> list[Row]:
    """Return the evaluations in a client's row of a version that had no table of them."""
    found = []
    for model, split in product(MODELS, SPLITS):
        prefix, total = column_prefix(model, split), row.get(f"{column_prefix('own', split)}total")
        correct, accuracy = (row.get(f"{prefix}{name}") for name in ("correct", "accuracy"))
        if total and (correct is not None or accuracy is not None):
            right = round(accuracy * total) if correct is None else int(correct)
            counts = Counts(model, split, right, int(total), row.get(f"{prefix}loss"))
            found.append(evaluation_row(row["round"], row["partition_id"], counts))
    return found


def other_data(run: Run, digests: Mapping[str, str]) -> list[str]:
    """Return the names of the digests of data that the run has recorded otherwise."""
    recorded = run.description.get("data") or {}
    return [name for name, digest in digests.items() if recorded.get(name, digest) != digest]


def legs_of(description: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], slice]]:
    """Return what describes each process that wrote a run, and its rounds that count."""
    legs = [{**description, "after_round": 0}, *description.get("continued", [])]
    begins = [leg["after_round"] for leg in legs]
    ends = [min(begins[number:], default=None) for number in range(1, len(legs) + 1)]
    return [(leg, slice(begin, end)) for leg, begin, end in zip(legs, begins, ends, strict=True)]


def damaged(file: Path, reason: str, remedy: str) -> DamagedRunError:
    """Return the error for a file that cannot be read."""
    return DamagedRunError(f"{file} is damaged ({reason}); {remedy}.")


def _frame(rows: Any, **options: Any) -> "pd.DataFrame":
    import pandas as pd  # deferred: writing and continuing runs needs no data frames

    return pd.DataFrame(rows, **options)


def _read_object(file: Path, needed: Types, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(file, _reason(error), remedy) from None
    _require_types(file, content, needed, remedy)
    return content


def _require_types(file: Path, content: Any, needed: Types, remedy: str) -> None:
    if not isinstance(content, dict):
        raise damaged(file, "it holds no JSON object", remedy)
    for name, kind in needed.items():
        if name not in content or not isinstance(content[name], kind):
            raise damaged(file, f"{name} is missing or has the wrong type", remedy)


def _impossible_accuracy(row: Row) -> str:
    """Return what is wrong with the accuracies of a row; empty if nothing is."""
    for name in (*ACCURACIES, *(f"validation_{name}" for name in ACCURACIES)):
        value = row.get(name)
        if isinstance(value, int | float) and (value < 0 or value > 1):
            return (
                f"{name} = {value:g} in round {row['round']:g}; accuracies are parts of 1: write "
                "0.875 for 87.5%"
            )
    return ""


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def in_one_shape(matrices: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack matrices, (rounds, ...); clients that had not joined are NaN, or -1."""
    shape = np.max([matrix.shape for matrix in matrices], axis=0).astype(int)
    filler = np.nan if np.issubdtype(matrices[0].dtype, np.floating) else -1
    stacked = np.full((len(matrices), *shape), filler, dtype=matrices[0].dtype)
    for matrix, place in zip(matrices, stacked, strict=True):
        place[tuple(map(slice, matrix.shape))] = matrix
    return stacked
