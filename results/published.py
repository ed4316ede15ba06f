"""Publish finished runs in the folder ``runs``, and read them again.

``runs/transfer.jsonl.xz`` has the sets whose names start so, such as ``transfer/kt-pfl``, as JSON
lines. The first line of a set has the settings that all its runs share, each further line a run.
"""

import functools
import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

import fedkd_flwr
from fedkd_flwr.analysis.comparison import Comparison
from fedkd_flwr.analysis.evaluations import new_client_accuracies
from fedkd_flwr.analysis.settings import defining_settings
from fedkd_flwr.analysis.significance import Effect, effects_of
from fedkd_flwr.runs import Run
from strategies.core.rounds import NEW_CLIENTS

PUBLISHED = Path(__file__).parent / "runs"
TOTALS = ("bytes_up", "bytes_down", "numbers_up", "numbers_down", "seconds")
STEPS = "gradient_steps"
"""Only newer runs have counted them."""
GUARDED = (
    "safeguarded_correct", "private_correct", "safeguarded_lost", "method_lost", "safeguard_weight",
)  # fmt: skip
"""Columns of each client with a safeguard after the last round."""
MADE_BY = (
    "project", "versions", "processor", "vector_extensions", "device", "torch_threads", "started",
)  # fmt: skip
"""Parts of ``config.json`` that say what made a run besides its settings."""

# ---- Writing -------------------------------------------------------------------------------


def published(run: Run) -> dict[str, Any]:
    """Return what is stored of a run, with all its settings.

    Raises
    ------
    ValueError
        If a client lacks its last evaluation: clients are told apart by their place.
    """
    if isinstance(run, PublishedRun):
        return {**run.kept, "settings": run.settings}
    rounds = run.rounds[run.rounds["accuracy_mean"].notna()]
    clients = run.clients.dropna(subset="accuracy")
    last = clients[clients["round"] == clients["round"].max()].sort_values("partition_id")
    new = new_client_accuracies(run)
    due, summary = run.config["num-clients"] - len(new), run.summary or {}
    if len(last) != due or last["round"].max() != summary["rounds"]:
        raise ValueError(
            f"{run.path.name} has {len(last)} of {due} clients' results after its last round, "
            "which are all required. Run it again."
        )
    kept = {
        "settings": defining_settings(run.config),
        "rounds": rounds["round"].tolist(),
        "accuracy_mean": rounds["accuracy_mean"].round(4).tolist(),
        "accuracy_of_clients": last["accuracy"].round(4).tolist(),
        "test_images": last["total"].astype(int).tolist(),
        **{name: summary[name] for name in (*TOTALS, STEPS) if name in summary},
        "made_by": {name: run.description[name] for name in MADE_BY if name in run.description},
    }
    validated = rounds["validation_accuracy_mean"].astype(float)
    if validated.notna().all():
        kept["validation_accuracy_mean"] = validated.round(4).tolist()
    if GUARDED[0] in last:
        kept["safeguards"] = {name: last[name].round(4).tolist() for name in GUARDED}
    if len(new):
        kept["accuracy_of_new_clients"] = {n: round(value, 4) for n, value in new.items()}
        for name in ("bytes_up", "bytes_down"):
            kept[f"new_{name}"] = summary["new_clients"][name]
    for name, column in (("epsilon", "epsilon"), ("dp_epsilon", "dp_epsilon_max")):
        if column in run.rounds:
            kept[name] = round(float(run.rounds[column].iloc[-1]), 3)
    return kept


def file_of(name: str, folder: Path = PUBLISHED) -> Path:
    """Return the file of a set."""
    return folder / f"{name.partition('/')[0]}.jsonl.xz"


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file of runs; a file that does not exist has none."""
    return lzma.decompress(file.read_bytes()).decode().splitlines() if file.exists() else []


def write_set(name: str, runs: Sequence[Run], folder: Path = PUBLISHED) -> None:
    """Write a set in place of the set of its name; equal runs give equal bytes."""
    found, file = [published(run) for run in runs], file_of(name, folder)
    first, *others = [one["settings"] for one in found]
    shared = {k: v for k, v in first.items() if all(own.get(k) == v for own in others)}
    for one in found:
        one["settings"] = {k: v for k, v in one["settings"].items() if k not in shared}
    new = [json.dumps({"set": name, **line}) for line in [{"shared": shared}, *found]]
    kept = [line for line in read_lines(file) if json.loads(line)["set"] != name]
    # The sort is stable, so that the shared settings stay first.
    lines = sorted([*kept, *new], key=lambda line: json.loads(line)["set"])
    folder.mkdir(exist_ok=True)
    file.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    for cached in (_sets, compared, effects):
        cached.cache_clear()


def publish(runs: Path, name: str, add: bool, folder: Path = PUBLISHED) -> int:
    """Store a folder of runs as a set, in place of it or added to it; return the set's size."""
    found = [run for group in fedkd_flwr.compare(runs).groups.values() for run in group]
    if add:
        settings = [defining_settings(run.config) for run in found]
        kept = _sets(file_of(name, folder)).get(name, [])
        found = [*(run for run in kept if run.settings not in settings), *found]
        fedkd_flwr.compare(found)  # refuses other splits
    write_set(name, found, folder)
    return len(found)


# ---- Reading -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedRun(Run):
    """A published run, which `fedkd_flwr.compare` accepts: its line, with the shared settings."""

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
    def round_rows(self) -> list[dict[str, Any]]:
        """One row per evaluated round."""
        numbers = self.kept["rounds"]
        validated = self.kept.get("validation_accuracy_mean", [None] * len(numbers))
        names = ("round", "accuracy_mean", "validation_accuracy_mean")
        rows = zip(numbers, self.accuracies, validated, strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    @cached_property
    def client_rows(self) -> list[dict[str, Any]]:
        """One row per client after the last round."""
        accuracies, guarded = self.kept["accuracy_of_clients"], self.kept.get("safeguards", {})
        images = self.kept.get("test_images", [None] * len(accuracies))
        rows = []
        for n, (accuracy, total) in enumerate(zip(accuracies, images, strict=True)):
            row = {"round": self.kept["rounds"][-1], "partition_id": n, "accuracy": accuracy}
            row |= {"total": total, **{name: values[n] for name, values in guarded.items()}}
            if guarded:
                row["correct"] = round(accuracy * total)
                for name in ("safeguarded", "private"):
                    row[f"{name}_accuracy"] = row[f"{name}_correct"] / total
            rows.append(row)
        return rows

    @cached_property
    def further_rows(self) -> dict[str, list[dict[str, Any]]]:
        """The new clients, if there are any."""
        last, new = self.kept["rounds"][-1], self.kept.get("accuracy_of_new_clients", {})
        rows = [{"round": last, "partition_id": int(n), "accuracy": one} for n, one in new.items()]
        return {NEW_CLIENTS: rows} if rows else {}

    @property
    def finished(self) -> bool:
        """True, because only finished runs are published."""
        return True

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Accuracy and spread after the last round and the validation round, and totals."""
        kept, accuracies = self.kept, np.array(self.kept["accuracy_of_clients"])
        spread = {"accuracy_std": float(accuracies.std()), "accuracy_min": float(accuracies.min())}
        validated = kept.get("validation_accuracy_mean")
        best = {"accuracy_mean": self.accuracies[int(np.argmax(validated))]} if validated else None
        rounds = kept["rounds"][-1]
        last = {"round": rounds, "accuracy_mean": self.accuracies[-1], **spread}
        totals = {name: kept.get(name, np.nan) for name in TOTALS}
        totals |= {STEPS: kept[STEPS]} if STEPS in kept else {}
        return {"rounds": rounds, "last_round": last, "validation_round": best, **totals}

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


def set_names(folder: Path = PUBLISHED) -> list[str]:
    """Return the names of the published sets."""
    return [name for file in sorted(folder.iterdir()) for name in _sets(file)]


def read_set(name: str, folder: Path = PUBLISHED) -> list[PublishedRun]:
    """Return the runs of a set, in the order of the file."""
    sets = _sets(file_of(name, folder))
    if name not in sets:
        raise ValueError(f"there is no published set {name}")
    return sets[name]


# ---- Comparing -----------------------------------------------------------------------------


@functools.cache
def compared(name: str) -> Comparison:
    """Return the comparison of a set's runs."""
    return fedkd_flwr.compare(read_set(name))


def groups_of(comparison: Comparison) -> dict[str, list[PublishedRun]]:
    """Return the runs of a comparison of published runs, by label."""
    return cast(dict[str, list[PublishedRun]], comparison.groups)


def reference_of(comparison: Comparison, label: str, run: Run) -> PublishedRun | None:
    """Return the run of `local` that a run is compared with."""
    return cast(PublishedRun | None, comparison.references.of(label, run.config["seed"]))


@functools.cache
def effects(name: str) -> dict[str, Effect]:
    """Return the gains of a set's runs over `local` after the same round, or its last."""
    comparison = compared(name)
    return effects_of({label: gains(comparison, label) for label in comparison.effects})


def gains(comparison: Comparison, label: str, server_round: int | None = None) -> list[float]:
    """Return the gains of a label's runs after a round, by default their last."""
    pairs = [(run, reference_of(comparison, label, run)) for run in groups_of(comparison)[label]]
    return [
        run.accuracy_at(server_round) - local.accuracy_at(server_round or run.kept["rounds"][-1])
        for run, local in pairs
        if local
    ]


def by_seed(runs: Iterable[PublishedRun]) -> dict[int, float]:
    """Return the accuracy after the last round by seed."""
    return {run.config["seed"]: run.accuracies[-1] for run in runs}


# ---- Columns of tables ---------------------------------------------------------------------


def makers(runs: Iterable[Run]) -> dict[str, str]:
    """Return the versions and commits that made some runs; a plus marks changed files."""
    projects = [run.description.get("project") or {} for run in runs]
    commits = dict.fromkeys(
        one["commit"][:8] + "+" * bool(one.get("modified")) for one in projects if one.get("commit")
    )
    versions = dict.fromkeys(one["version"] for one in projects if one)
    return {"version": " ".join(versions), "commit": " ".join(commits) or "not recorded"}


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
