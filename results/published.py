"""Publish finished runs in the folder ``runs``, and read them again.

A file has the sets whose names start alike: ``runs/transfer.jsonl.xz`` has ``transfer/kt-pfl``. It
has JSON lines, compressed by xz. The first line of a set has the settings that all its runs share,
each further line a run: its other settings, mean accuracy by round, the accuracy of every client
after the last round and of every new client, traffic, seconds, and what made it.
"""

import functools
import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedkd_flwr
from fedkd_flwr import Run
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.evaluations import new_client_accuracies
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.analysis.significance import Effect, effects_of
from strategies.core.new_clients import NEW_CLIENTS

PUBLISHED = Path(__file__).parent / "runs"
TRAFFIC = ("numbers_up", "numbers_down", "bytes_up", "bytes_down")
"""Columns that are summed over rounds."""

MEANS = ("moved_private", "moved_public")
"""Columns whose mean over clients is stored: how far a round moves a client's weights."""

USERS = ("global_accuracy", "teacher_accuracy", "lambda", "temperature", "teacher_round")
"""PersFL's columns of each client after the last round."""

GUARDED = (
    "safeguarded_correct",
    "private_correct",
    "safeguarded_lost",
    "method_lost",
    "safeguard_weight",
)
"""Columns of each client with a safeguard after the last round; the weight has four digits."""

MADE_BY = (
    "project",
    "versions",
    "processor",
    "vector_extensions",
    "device",
    "torch_threads",
    "started",
)
"""Parts of ``config.json`` that say what made a run besides its settings."""


def makers(runs: Iterable[Run]) -> dict[str, str]:
    """Return the versions and commits that made some runs; a plus marks changed files."""
    projects = [run.description.get("project") or {} for run in runs]
    commits = [
        one["commit"][:8] + ("+" if one.get("modified") else "")
        for one in projects
        if one.get("commit")
    ]
    return {
        "version": " ".join(dict.fromkeys(one["version"] for one in projects if one)),
        "commit": " ".join(dict.fromkeys(commits)) or "not recorded",
    }


# ---- The file ---------------------------------------------------------------------------


def file_of(name: str, folder: Path = PUBLISHED) -> Path:
    """Return the file of a set, which the part of its name before the slash names."""
    return folder / f"{name.partition('/')[0]}.jsonl.xz"


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file of runs; a file that does not exist has none."""
    return lzma.decompress(file.read_bytes()).decode().splitlines() if file.exists() else []


def write_lines(lines: Sequence[str], file: Path) -> None:
    """Write a file of runs. Equal lines give equal bytes: no time is stored."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))


# ---- From runs to lines -----------------------------------------------------------------


def published(run: Run) -> dict[str, Any]:
    """Return what is stored of a run, with all its settings.

    Raises
    ------
    ValueError
        If a client lacks its last evaluation: clients are told apart by their place.
    """
    if isinstance(run, PublishedRun):
        return {**run.kept, "settings": run.settings}
    evaluated = run.rounds["accuracy_mean"].notna()
    rounds = run.rounds[evaluated]
    sizes = run.rounds["bytes_up"] + run.rounds["bytes_down"]
    seconds = run.rounds.filter(regex="^seconds_").sum(axis=1)
    clients = run.clients.dropna(subset="accuracy")
    last = clients[clients["round"] == clients["round"].max()].sort_values("partition_id")
    new = new_client_accuracies(run)
    due = run.config["num-clients"] - len(new)
    if len(last) != due or last["round"].max() != run.summary["rounds"]:
        raise ValueError(
            f"{run.path.name} has {len(last)} of {due} clients' results after its last round, "
            "which are all required. Run it again."
        )
    result = {
        "settings": defining_settings(run.config),
        "rounds": rounds["round"].tolist(),
        "accuracy_mean": rounds["accuracy_mean"].round(4).tolist(),
        "accuracy_of_clients": last["accuracy"].round(4).tolist(),
        "test_images": last["total"].astype(int).tolist(),
        **{column: int(run.rounds[column].sum()) for column in TRAFFIC},
        "bytes_to_round": sizes.cumsum()[evaluated].astype(int).tolist(),
        "seconds_to_round": seconds.cumsum()[evaluated].round(2).tolist(),
        "seconds": round(run.summary["seconds"], 1),
        **_counted(run.summary),
        "made_by": {name: run.description[name] for name in MADE_BY if name in run.description},
    }
    validated = run.rounds["validation_accuracy_mean"].astype(float)
    if validated[evaluated].notna().all():
        result["validation_accuracy_mean"] = validated[evaluated].round(4).tolist()
    users = {name: last[name].round(4).tolist() for name in USERS if name in last}
    if users:
        result["users"] = users
    if GUARDED[0] in last:
        result["safeguards"] = {name: last[name].round(4).tolist() for name in GUARDED}
    for column in MEANS:
        if column in run.clients:
            result[column] = float(f"{run.clients[column].mean():.3g}")
    if len(new):
        result["accuracy_of_new_clients"] = {n: round(value, 4) for n, value in new.items()}
        for column in ("bytes_up", "bytes_down"):
            result[f"new_{column}"] = run.summary["new_clients"][column]
    if "epsilon" in run.rounds:
        result["epsilon"] = round(float(run.rounds["epsilon"].iloc[-1]), 3)
    if "dp_epsilon_max" in run.rounds:
        result["dp_epsilon"] = round(float(run.rounds["dp_epsilon_max"].iloc[-1]), 3)
    return result


def _counted(summary: dict[str, Any]) -> dict[str, int]:
    """Return the gradient steps of all clients, where a run has counted them."""
    steps = summary.get("gradient_steps")
    return {} if steps is None else {"gradient_steps": steps}


def lines_of(name: str, runs: Sequence[Run]) -> list[str]:
    """Return the lines of a set: its shared settings, then one line a run."""
    found = [published(run) for run in runs]
    shared = {
        key: value
        for key, value in found[0]["settings"].items()
        if all(one["settings"].get(key) == value for one in found)
    }
    for one in found:
        one["settings"] = {k: v for k, v in one["settings"].items() if k not in shared}
    return [json.dumps({"set": name, **line}) for line in [{"shared": shared}, *found]]


def write_set(name: str, runs: Sequence[Run], folder: Path = PUBLISHED) -> None:
    """Write a set in place of the set of its name; sets are in alphabetical order."""
    file = file_of(name, folder)
    others = [line for line in read_lines(file) if json.loads(line)["set"] != name]
    # The sort is stable, so that the shared settings stay first.
    write_lines(
        sorted([*others, *lines_of(name, runs)], key=lambda line: json.loads(line)["set"]), file
    )
    _sets.cache_clear()
    compared.cache_clear()
    effects.cache_clear()


# ---- From lines to runs --------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedRun(Run):
    """A published run, which `fedkd_flwr.compare` accepts.

    Attributes
    ----------
    kept : dict
        The line, its settings completed by the shared ones.
    """

    kept: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the run's numbers depend on."""
        return defining_settings(self.kept["settings"])

    @cached_property
    def accuracies(self) -> list[float]:
        """Mean accuracy at each evaluated round; the last is recomputed from clients."""
        last = float(np.mean(self.kept["accuracy_of_clients"]))
        return [*self.kept["accuracy_mean"][:-1], last]

    def accuracy_at(self, server_round: int | None) -> float:
        """Return the mean accuracy after a round, or after the last if that is earlier or None."""
        rounds = self.kept["rounds"]
        return self.accuracies[rounds.index(min(server_round or rounds[-1], rounds[-1]))]

    @cached_property
    def description(self) -> dict[str, Any]:
        """The settings, and what made the run where that was published."""
        return {"config": self.kept["settings"], **self.kept.get("made_by", {})}

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per evaluated round; traffic and seconds include the rounds before it."""
        kept, columns = self.kept, {"accuracy_mean": self.accuracies}
        columns["validation_accuracy_mean"] = kept.get("validation_accuracy_mean")
        for name, stored in (("bytes_up", "bytes_to_round"), ("seconds_all", "seconds_to_round")):
            columns[name] = np.diff(kept[stored], prepend=0) if stored in kept else np.nan
        evaluated = pd.DataFrame({**columns, "bytes_down": 0}, index=kept["rounds"])
        every = evaluated.reindex(range(1, kept["rounds"][-1] + 1))
        return every.rename_axis("round").reset_index()

    @cached_property
    def round_rows(self) -> list[dict[str, Any]]:
        """The same as `rounds`."""
        rows = self.rounds.astype(object).where(self.rounds.notna(), None)
        return rows.to_dict("records")

    @cached_property
    def client_rows(self) -> list[dict[str, Any]]:
        """One row per client after the last round."""
        accuracies = self.kept["accuracy_of_clients"]
        images = self.kept.get("test_images", [None] * len(accuracies))
        rows = [
            {"round": self.kept["rounds"][-1], "partition_id": n, "accuracy": a, "total": total}
            for n, (a, total) in enumerate(zip(accuracies, images, strict=True))
        ]
        guarded = self.kept.get("safeguards", {})
        for n, row in enumerate(rows if guarded else []):
            row |= {name: values[n] for name, values in guarded.items()}
            row["correct"] = round(row["accuracy"] * row["total"])
            for name in ("safeguarded", "private"):
                row[f"{name}_accuracy"] = row[f"{name}_correct"] / row["total"]
        return rows

    @cached_property
    def further_rows(self) -> dict[str, list[dict[str, Any]]]:
        """The new clients, if there are any."""
        new = self.kept.get("accuracy_of_new_clients", {})
        rows = [
            {"round": self.kept["rounds"][-1], "partition_id": int(n), "accuracy": accuracy}
            for n, accuracy in new.items()
        ]
        return {NEW_CLIENTS: rows} if rows else {}

    @property
    def finished(self) -> bool:
        """True, because only finished runs are published."""
        return True

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Accuracy and spread after the last round and the validation round, and totals."""
        kept, accuracies = self.kept, np.array(self.kept["accuracy_of_clients"])
        rounds = kept["rounds"][-1]
        last_round = {
            "round": rounds,
            "accuracy_mean": self.accuracies[-1],
            "accuracy_std": float(accuracies.std()),
            "accuracy_min": float(accuracies.min()),
        }
        validated = kept.get("validation_accuracy_mean")
        best = {"accuracy_mean": self.accuracies[int(np.argmax(validated))]} if validated else None
        totals = {name: kept.get(name, np.nan) for name in (*TRAFFIC, "seconds")} | _counted(kept)
        return {"rounds": rounds, "last_round": last_round, "validation_round": best, **totals}

    def check(self) -> None:
        """Do nothing, because the whole file was read."""


@functools.cache
def _sets(file: Path) -> dict[str, list[PublishedRun]]:
    shared: dict[str, dict[str, Any]] = {}
    runs: dict[str, list[PublishedRun]] = {}
    for line in map(json.loads, read_lines(file)):
        name = line.pop("set")
        if "shared" in line:
            shared[name], runs[name] = line["shared"], []
            continue
        kept = {**line, "settings": {**shared[name], **line["settings"]}}
        runs[name].append(PublishedRun(file.parent / name / str(len(runs[name])), kept=kept))
    return runs


def set_names(prefix: str = "", folder: Path = PUBLISHED) -> list[str]:
    """Return the names of the published sets that start with a prefix."""
    files = [file_of(prefix, folder)] if "/" in prefix else sorted(folder.iterdir())
    return [name for file in files for name in _sets(file) if name.startswith(prefix)]


def read_set(name: str, folder: Path = PUBLISHED) -> list[PublishedRun]:
    """Return the runs of a set, in the order of the file.

    Raises
    ------
    ValueError
        If there is no such set.
    """
    sets = _sets(file_of(name, folder))
    if name not in sets:
        raise ValueError(f"there is no published set {name}")
    return sets[name]


@functools.cache
def compared(name: str) -> Comparison:
    """Return the comparison of a set's runs."""
    return fedkd_flwr.compare(read_set(name))


@functools.cache
def effects(name: str) -> dict[str, Effect]:
    """Return the gains of a set's runs over `local` after the same round, or its last."""
    comparison = compared(name)
    return effects_of({label: gains(comparison, label) for label in comparison.effects})


def gains(comparison: Comparison, label: str, server_round: int | None = None) -> list[float]:
    """Return the gains of a label's runs after a round, by default their last."""
    pairs = [
        (run, comparison.references.of(label, run.config["seed"]))
        for run in comparison.groups[label]
    ]
    return [
        run.accuracy_at(server_round) - local.accuracy_at(server_round or run.kept["rounds"][-1])
        for run, local in pairs
        if local
    ]


# ---- Numbers of several runs ---------------------------------------------------------------


def by_seed(runs: Iterable[PublishedRun]) -> dict[int, float]:
    """Return the accuracy after the last round by seed."""
    return {run.config["seed"]: run.accuracies[-1] for run in runs}


def mean(values: Iterable[float], digits: int = 4) -> float:
    """Return a rounded mean; NaN if a value is missing."""
    return round(float(np.mean(list(values))), digits)


def mean_and_spread(name: str, values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return a mean over seeds and its standard deviation, NaN for one seed."""
    spread = np.std(values, ddof=1) if len(values) > 1 else np.nan
    return {name: mean(values), f"{name}_sd": round(float(spread), 4)}


def in_points(name: str, effect: Effect | None) -> dict[str, float]:
    """Return a mean difference with its interval in points; NaN without an effect."""
    values = (effect.gain, effect.low, effect.high) if effect and effect.seeds else [np.nan] * 3
    columns = (name, f"{name}_low", f"{name}_high")
    return {one: round(100 * value, 4) for one, value in zip(columns, values, strict=True)}


# ---- The command -----------------------------------------------------------------------


def with_others(runs: list[Run], name: str, folder: Path = PUBLISHED) -> list[Run]:
    """Return the runs, after those of a published set whose settings differ from theirs."""
    settings = [defining_settings(run.config) for run in runs]
    kept = read_set(name, folder) if name in set_names(name, folder) else []
    return [*(run for run in kept if run.settings not in settings), *runs]


def publish(runs: Path, name: str, add: bool, folder: Path = PUBLISHED) -> int:
    """Store a folder of runs as a set, in place of one of its name or added to it.

    Returns
    -------
    int
        How many runs the set has.
    """
    found = [run for group in fedkd_flwr.compare(runs).groups.values() for run in group]
    if add:
        found = with_others(found, name, folder)
        # Refuses runs whose splits differ from the stored ones.
        fedkd_flwr.compare(found)
    write_set(name, found, folder)
    return len(found)
