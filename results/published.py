"""Publish finished runs in the folder ``runs``, read them again, and make columns of tables.

``runs/transfer.jsonl.xz`` has the sets whose names start so, such as ``transfer/kt-pfl``, a run a
line: the parts of its directory that tables need.
"""

import functools
import json
import lzma
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedkd_flwr
from fedkd_flwr.analysis.columns import REFERENCE
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.groups import steps_of_a_client
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.analysis.significance import Effect, effects_of
from fedkd_flwr.config.suggestions import current_config
from fedkd_flwr.runs import Run

PUBLISHED = Path(__file__).parent / "runs"

Row = dict[str, Any]
"""A row of a table."""

GUARDS = ("safeguarded", "private")
DESCRIPTION = (
    "project", "versions", "processor", "vector_extensions", "device", "torch_threads", "started",
)  # fmt: skip
MOMENTS = {"own": "", "trained": "trained_", "distilled": "distilled_"}
"""Models of a client, and how the columns of their accuracies begin."""

ROUNDS = (
    "round", "global_accuracy_mean",
    *(f"{p}{on}accuracy_mean" for p in MOMENTS.values() for on in ("", "validation_")),
    "epsilon", "dp_epsilon_max",
)  # fmt: skip
CLIENTS = (
    "round", "partition_id", "accuracy", "total", "correct", *(f"{who}_correct" for who in GUARDS),
    "safeguarded_lost", "method_lost", "safeguard_weight",
)  # fmt: skip
SUMMARY = (
    "rounds", "last_round", "validation_round", "bytes_up", "bytes_down", "numbers_up",
    "numbers_down", "seconds", "gradient_steps", "new_clients",
)  # fmt: skip
"""What is published of ``config.json`` besides settings, of tables and of ``summary.json``."""
USERS = ("lambda", "temperature", "teacher_round")
PAIR = ["lambda", "temperature"]


class PublishedRun(Run):
    """A published run, which `fedkd_flwr.compare` accepts."""

    also_measured: dict[str, Any]

    @property
    def finished(self) -> bool:
        """True, because only finished runs are published."""
        return True

    def check(self) -> None:
        """Do nothing, because the whole file was read."""


def published(run: Run) -> dict[str, Any]:
    """Return what is stored of a run.

    Raises
    ------
    ValueError
        If a client lacks its last evaluation: a mean over the others would be of other clients.
    """
    last, new = run.last_evaluations.reset_index(), run.further_rows.get("new_clients", [])
    summary = run.summary or {}
    due = run.config["num-clients"] - len({row["partition_id"] for row in new})
    if len(last) != due or last["round"].max() != summary["rounds"]:
        raise ValueError(
            f"{run.path.name} has {len(last)} of {due} clients' results after its last round, "
            "which are all required. Run it again."
        )
    described = {name: run.description[name] for name in DESCRIPTION if name in run.description}
    return {
        "description": {"config": defining_settings(run.config), **described},
        "rounds": _columns(run.rounds.dropna(subset="accuracy_mean"), ROUNDS),
        "clients": _columns(last, CLIENTS),
        "new_clients": new,
        "summary": {name: summary[name] for name in SUMMARY if name in summary},
        "also_measured": also_measured(run),
    }


def also_measured(run: Run) -> dict[str, Any]:
    """Return PersFL's users and the mean accuracy of each pair, and FedKMA's M by round."""
    found: dict[str, Any] = {}
    if users := _columns(run.last_evaluations, USERS):
        found["users"] = users
    if not (pairs := run.table("pairs")).empty:
        means = pairs.groupby(PAIR)[["accuracy"]].mean().reset_index()
        found["pairs"] = _columns(means, (*PAIR, "accuracy"))
    if "sharing" in run.matrices:
        found["sharing"] = run.matrices["sharing"].round(4).tolist()
    return found


def _columns(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, list[Any]]:
    known = [name for name in names if name in frame and frame[name].notna().any()]
    found = frame[known].astype(object).where(frame[known].notna(), None)
    return {name: found[name].tolist() for name in known}


def opened(path: Path, line: dict[str, Any]) -> PublishedRun:
    """Return a run from what `published` returns."""
    run, config = PublishedRun(path), current_config(line["description"]["config"])
    # Cached properties are kept there.
    vars(run).update(
        description={**line["description"], "config": defining_settings(config)},
        _stored={name: _rows(line[name]) for name in ("rounds", "clients")},
        further_rows={"new_clients": line["new_clients"]} if line["new_clients"] else {},
        summary=line["summary"],
        also_measured=line.get("also_measured", {}),
    )
    return run


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- Sets ----------------------------------------------------------------------------------


def file_of(name: str, folder: Path = PUBLISHED) -> Path:
    """Return the file of a set."""
    return folder / f"{name.partition('/')[0]}.jsonl.xz"


def write_set(name: str, runs: Sequence[Run], folder: Path = PUBLISHED) -> None:
    """Write a set over the one of its name; equal runs give equal bytes."""
    sets, file = dict(_lines(file_of(name, folder))), file_of(name, folder)
    sets[name] = [json.dumps({"set": name, **published(run)}) for run in runs]
    lines = [line for one in sorted(sets) for line in sets[one]]
    folder.mkdir(exist_ok=True)
    file.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    for cached in (_lines, compared, effects):
        cached.cache_clear()


def publish(runs: Path, name: str, folder: Path = PUBLISHED) -> None:
    """Store the finished runs of a folder as a set; runs on different splits are refused."""
    groups = fedkd_flwr.compare(runs).groups.values()
    write_set(name, [run for group in groups for run in group], folder)


@functools.cache
def _lines(file: Path) -> dict[str, list[str]]:
    """Return the lines of a file by set; a file that does not exist has none."""
    found: dict[str, list[str]] = defaultdict(list)
    if file.exists():
        for line in lzma.decompress(file.read_bytes()).decode().splitlines():
            found[json.loads(line)["set"]].append(line)
    return found


def set_names(folder: Path = PUBLISHED) -> list[str]:
    """Return the names of the published sets."""
    return [name for file in sorted(folder.iterdir()) for name in _lines(file)]


def read_set(name: str, folder: Path = PUBLISHED) -> list[PublishedRun]:
    """Return the runs of a set, in the order of the file."""
    lines = _lines(file_of(name, folder))
    if name not in lines:
        raise ValueError(f"there is no published set {name}")
    return [opened(folder / name / str(n), json.loads(one)) for n, one in enumerate(lines[name])]


# ---- Comparisons ---------------------------------------------------------------------------


@functools.cache
def compared(name: str) -> Comparison:
    """Return the comparison of a set's runs."""
    return fedkd_flwr.compare(read_set(name))


def accuracy(run: Run, server_round: int | None = None, model: str = "") -> float:
    """Return the mean accuracy after a round, by default the last; a run may end before it.

    `model` is the prefix of another model's columns, such as ``trained_``; NaN without one.
    """
    rows = [row for row in run.round_rows if row["round"] <= (server_round or row["round"])]
    return float(rows[-1].get(f"{model}accuracy_mean", np.nan))


def evaluations(run: Run, models: Collection[str]) -> pd.DataFrame:
    """Return validation and test accuracy by round and model, in the order of the rounds."""
    return pd.DataFrame(
        {
            "round": row["round"],
            "validation": row[f"{MOMENTS[model]}validation_accuracy_mean"],
            "accuracy": accuracy,
        }
        for row in run.round_rows
        for model in models
        if (accuracy := row.get(f"{MOMENTS[model]}accuracy_mean")) is not None
    )


def chosen(evaluated: pd.DataFrame) -> float:
    """Return the accuracy of the evaluation with the best validation accuracy, or its first."""
    return float(evaluated["accuracy"].iloc[evaluated["validation"].argmax()])


def gains(comparison: Comparison, label: str, server_round: int | None = None) -> list[float]:
    """Return the gains of a label's runs over `local` after the same round, or its last."""
    pairs = [
        (run, comparison.references.of(label, run.config["seed"]))
        for run in comparison.groups[label]
    ]
    return [
        accuracy(run, server_round) - accuracy(local, server_round or run.round_rows[-1]["round"])
        for run, local in pairs
        if local
    ]


@functools.cache
def effects(name: str) -> dict[str, Effect]:
    """Return the gains of a set's methods, by label, with Holm's correction over the set."""
    return effects_in(compared(name))


def effects_in(comparison: Comparison) -> dict[str, Effect]:
    """Return the gains of a comparison's methods as `effects` does."""
    found = {label: gains(comparison, label) for label in comparison.groups}
    return effects_of({label: own for label, own in found.items() if own})


def by_seed(runs: Sequence[Run]) -> dict[int, float]:
    """Return the accuracy after the last round by seed."""
    return {run.config["seed"]: accuracy(run) for run in runs}


# ---- Columns -------------------------------------------------------------------------------


def mean(values: Iterable[float], digits: int = 4) -> float:
    """Return a rounded mean; NaN if a value is missing."""
    return round(float(np.mean(list(values))), digits)


def mean_and_spread(name: str, values: Sequence[float]) -> Row:
    """Return a mean of fractions over seeds and its standard deviation, in percent."""
    percent = [100 * value for value in values]
    return {name: mean(percent), f"{name}_sd": round(float(pd.Series(percent).std()), 4)}


def in_points(name: str, effect: Effect | None) -> Row:
    """Return a mean difference with its interval in points; NaN without an effect."""
    values = (effect.gain, effect.low, effect.high) if effect and effect.seeds else [np.nan] * 3
    columns = (name, f"{name}_low", f"{name}_high")
    return {one: round(100 * value, 4) for one, value in zip(columns, values, strict=True)}


def makers(runs: Iterable[Run]) -> Row:
    """Return the versions and commits that made some runs; a plus marks changed files."""
    projects = [run.description.get("project") or {} for run in runs]
    commits = dict.fromkeys(
        one["commit"][:8] + "+" * bool(one.get("modified")) for one in projects if one.get("commit")
    )
    versions = dict.fromkeys(one["version"] for one in projects if one)
    return {"version": " ".join(versions), "commit": " ".join(commits) or "not recorded"}


def traffic(runs: Iterable[Run], *ways: str) -> float:
    """Return the mean bytes of a run, ``up`` or ``down`` or both."""
    summaries = [run.summary or {} for run in runs]
    return mean((sum(one[f"bytes_{way}"] for way in ways) for one in summaries), 0)


def steps_of(runs: Iterable[Run]) -> float:
    """Return the gradient steps of the mean client without a safeguard's private model's.

    A private model takes the steps of `local`. Accuracies are of the method's model alone.
    """
    taken = []
    for run in runs:
        of_private = run.config["local-iterations"] * run.config["num-server-rounds"]
        has_private = run.config["safeguard"] != "none" and run.config["strategy"] != REFERENCE
        taken.append(steps_of_a_client(run) - (of_private if has_private else 0))
    return mean(taken, 0)


def run_columns(label: str, runs: Sequence[Run], effect: Effect | None) -> Row:
    """Return the columns that every table of runs has; see `Comparison.groups` for the label."""
    method, _, settings = label.partition(" (")
    return {
        "method": method,
        "settings": settings.removesuffix(")"),
        "seeds": len(runs),
        **mean_and_spread("accuracy", list(map(accuracy, runs))),
        **in_points("gain", effect),
        "p": float(f"{effect.p_holm:.6g}") if effect else np.nan,
        "verdict": str(effect.outcome) if effect and effect.seeds else "",
        "steps": steps_of(runs),
        "bytes": traffic(runs, "up", "down"),
        **makers(runs),
    }
