"""Publish finished runs on the same splits as a small JSON file.

    python docs/results/publish_runs.py [--add] RUNS OUTPUT

OUTPUT.json has the common settings of all runs. For each run it has the other settings, mean
accuracy by round, the accuracy of every client after the last round and of every new client,
traffic and seconds. With ``--add``, the file keeps its other runs, so a long sweep can be published
in parts. Then all tables are updated, as by ``python docs/results/check_tables.py --write``. To add
a table to a page, write ``<!-- from: tables.comparison OUTPUT.json --><!-- end -->``.
"""

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedkd_flwr
from fedkd_flwr import Run
from fedkd_flwr.analysis.results import new_client_accuracies
from fedkd_flwr.analysis.settings import defining_settings
from strategies.core.new_clients import NEW_CLIENTS

HERE = Path(__file__).parent
TRAFFIC = ("numbers_up", "numbers_down", "bytes_up", "bytes_down")
"""Columns that are summed over rounds."""

MEANS = ("moved_private", "moved_public")
"""Columns whose mean over clients is stored: how far a round moves a client's weights."""


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

# ---- From runs to JSON -----------------------------------------------------------------


def published(run: Run, shared: dict[str, Any]) -> dict[str, Any]:
    """Return the stored part of one run.

    Parameters
    ----------
    run : Run
        A finished run.
    shared : dict
        Settings that all runs have, which are left out here.

    Raises
    ------
    ValueError
        If a client lacks its last evaluation: clients are told apart by their place.
    """
    settings = defining_settings(run.config)
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
        "settings": {name: value for name, value in settings.items() if name not in shared},
        "rounds": rounds["round"].tolist(),
        "accuracy_mean": rounds["accuracy_mean"].round(4).tolist(),
        "accuracy_of_clients": last["accuracy"].round(4).tolist(),
        **{column: int(run.rounds[column].sum()) for column in TRAFFIC},
        "bytes_to_round": sizes.cumsum()[evaluated].astype(int).tolist(),
        "seconds_to_round": seconds.cumsum()[evaluated].round(2).tolist(),
        "seconds": round(run.summary["seconds"], 1),
        "made_by": {name: run.description[name] for name in MADE_BY if name in run.description},
    }
    if rounds["validation_accuracy_mean"].notna().all():
        validated = rounds["validation_accuracy_mean"].astype(float)
        result["validation_accuracy_mean"] = validated.round(4).tolist()
    for column in MEANS:
        if column in run.clients:
            result[column] = float(f"{run.clients[column].mean():.3g}")
    if len(new):
        result["accuracy_of_new_clients"] = {n: round(value, 4) for n, value in new.items()}
        for column in ("bytes_up", "bytes_down"):
            result[f"new_{column}"] = run.summary["new_clients"][column]
    if "epsilon" in run.rounds:
        result["epsilon"] = round(float(run.rounds["epsilon"].iloc[-1]), 3)
    return result


def line(run: Run, shared: dict[str, Any]) -> dict[str, Any]:
    """Return the stored part of a run, which may already be published; see `published`."""
    if not isinstance(run, PublishedRun):
        return published(run, shared)
    settings = {name: value for name, value in run.settings.items() if name not in shared}
    return {**run.kept, "settings": settings}


def write_json(runs: Sequence[Run], output: Path) -> None:
    """Write the common settings, and one line per run."""
    settings = [defining_settings(run.config) for run in runs]
    shared = {
        name: value
        for name, value in settings[0].items()
        if all(other.get(name) == value for other in settings)
    }
    rows = ",\n".join(json.dumps(line(run, shared)) for run in runs)
    text = f'{{"shared": {json.dumps(shared)},\n"runs": [\n{rows}\n]}}\n'
    json.loads(text)
    output.write_text(text)


# ---- From JSON to runs --------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedRun(Run):
    """A run of a published file, which `fedkd_flwr.compare` accepts.

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

    @cached_property
    def description(self) -> dict[str, Any]:
        """The settings, and what made the run where that was published."""
        return {"config": self.kept["settings"], **self.kept.get("made_by", {})}

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per evaluated round; traffic and seconds include the rounds before it."""
        kept = self.kept
        columns = {
            "accuracy_mean": self.accuracies,
            "validation_accuracy_mean": kept.get("validation_accuracy_mean"),
            "bytes_up": np.diff(kept["bytes_to_round"], prepend=0)
            if "bytes_to_round" in kept
            else np.nan,
            "bytes_down": 0,
            "seconds_all": np.diff(kept["seconds_to_round"], prepend=0)
            if "seconds_to_round" in kept
            else np.nan,
        }
        evaluated = pd.DataFrame(columns, index=kept["rounds"])
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
        last_round = self.kept["rounds"][-1]
        return [
            {"round": last_round, "partition_id": n, "accuracy": accuracy}
            for n, accuracy in enumerate(self.kept["accuracy_of_clients"])
        ]

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
        kept = self.kept
        accuracies = np.array(kept["accuracy_of_clients"])
        last_round = {
            "round": kept["rounds"][-1],
            "accuracy_mean": self.accuracies[-1],
            "accuracy_std": float(accuracies.std()),
            "accuracy_min": float(accuracies.min()),
        }
        validated = kept.get("validation_accuracy_mean")
        best = int(np.argmax(validated)) if validated else None
        chosen = None if best is None else {"accuracy_mean": self.accuracies[best]}
        totals = {name: kept[name] for name in (*TRAFFIC, "seconds")}
        rounds = kept["rounds"][-1]
        return {"rounds": rounds, "last_round": last_round, "validation_round": chosen, **totals}

    def check(self) -> None:
        """Do nothing, because the whole file was read."""


@functools.cache
def read_published(path: Path) -> list[PublishedRun]:
    """Return the runs of a published file, in its order."""
    content = json.loads(path.read_text())
    runs = []
    for number, run in enumerate(content["runs"]):
        settings = {**content["shared"], **run["settings"]}
        runs.append(PublishedRun(path / str(number), kept={**run, "settings": settings}))
    return runs


# ---- The command -----------------------------------------------------------------------


def others(runs: Iterable[Run], file: Path) -> list[PublishedRun]:
    """Return the runs of a published file whose settings differ from those of the given runs."""
    if not file.exists():
        return []
    settings = [defining_settings(run.config) for run in runs]
    return [run for run in read_published(file) if run.settings not in settings]


def main(folder: Path, output: Path, add: bool) -> None:
    """Publish a folder of runs, and update all tables."""
    file = output.with_suffix(".json")
    opened = [run for group in fedkd_flwr.compare(folder).groups.values() for run in group]
    runs = [*others(opened, file), *opened] if add else opened
    # Refuses runs whose splits differ from the stored ones.
    fedkd_flwr.compare(runs)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(runs, file)
    subprocess.run([sys.executable, HERE / "check_tables.py", "--write"], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", action="store_true", help="keep the other runs of OUTPUT.json")
    parser.add_argument("folder", type=Path, metavar="RUNS")
    parser.add_argument("output", type=Path, metavar="OUTPUT")
    main(**vars(parser.parse_args()))
